"""Spans -> where the time of their tasks went. Pure arithmetic on integer nanoseconds; the parts add up."""

from otel_worker.breakdown.critical import critical_parts
from otel_worker.breakdown.missing import missing
from otel_worker.breakdown.nodes import Group, Node, grouped, self_check
from otel_worker.breakdown.overtaking import Overtaking, overtaking
from otel_worker.breakdown.tasks import BY, Task, tasks, worker_names
from otel_worker.breakdown.what_if import WhatIf, what_if
from otel_worker.breakdown.why import Reason, named, why

__all__ = [
    "BY",
    "Group",
    "Node",
    "Overtaking",
    "Reason",
    "Task",
    "WhatIf",
    "critical_parts",
    "grouped",
    "missing",
    "named",
    "overtaking",
    "self_check",
    "tasks",
    "what_if",
    "why",
    "worker_names",
]
