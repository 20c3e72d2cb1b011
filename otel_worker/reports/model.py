"""A report as data: what `--json` prints, and what every rendering starts from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from otel_worker import names
from otel_worker.breakdown import (
    BY,
    Group,
    Overtaking,
    Reason,
    Task,
    WhatIf,
    critical_parts,
    grouped,
    missing,
    overtaking,
    self_check,
    tasks,
    what_if,
    why,
    worker_names,
)
from otel_worker.breakdown.critical import fetches
from otel_worker.breakdown.nodes import Left
from otel_worker.breakdown.ours import Ours
from otel_worker.traces import Span, Traces

SCHEMA = "otel-worker/report/1"  # a number more where a field changes its meaning or goes; new fields leave it
Method = Literal["shares", "critical_path"]
METHODS: tuple[Method, ...] = ("shares", "critical_path")


@dataclass(frozen=True, slots=True)
class Options:
    """What of the spans is reported; `only` selects tasks by what they can be grouped by."""

    method: Method = "shares"
    by: tuple[str, ...] = ()
    only: Mapping[str, str] = field(default_factory=dict)
    top: int = 5
    groups: int = 20


class Extent(Struct, frozen=True):
    """What the report is about. Times in seconds since the epoch."""

    spans: int
    tasks: int
    coalesced_tasks: int
    traces: int
    computations: int
    workers: int
    start: float
    end: float


class Report(Struct, frozen=True):
    """All durations are in seconds, all sizes in bytes."""

    schema: str
    source: str
    method: Method
    by: tuple[str, ...]
    only: dict[str, str]
    extent: Extent
    workers: dict[str, str]  # names by address
    groups: tuple[Group, ...]
    left_out: Left
    slowest: tuple[Reason, ...]
    overtaking: tuple[Overtaking, ...]
    what_if: tuple[WhatIf, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]


def build(traces: Traces, source: str, options: Options | None = None) -> Report:
    options = options or Options()
    spans = traces.spans
    ours = Ours(spans)
    everything = tasks(ours)
    found = _selected(everything, options.only)
    if options.method == "critical_path":
        held = fetches(ours, found)
        found = [replace(task, parts=critical_parts(task, held)) for task in found]
    workers = worker_names(everything)
    groups, left = grouped(found, options.by, options.groups)
    return Report(
        SCHEMA,
        source,
        options.method,
        options.by,
        dict(options.only),
        _extent(spans, found),
        workers,
        tuple(groups),
        left,
        tuple(why(found, ours, options.top, workers)),
        _overtaking(everything, found),
        _what_if(everything, found, ours),
        (*missing(ours, found, traces.fates), *(sentence for group in groups for sentence in self_check(group.tree))),
        traces.problems,
    )


def _overtaking(everything: list[Task], found: list[Task]) -> tuple[Overtaking, ...]:
    """Who overtook need not be selected."""
    prefixes = {t.prefix for t in found}
    return tuple(pair for pair in overtaking(everything) if pair.waiting in prefixes)


def _what_if(everything: list[Task], found: list[Task], ours: Ours) -> tuple[WhatIf, ...]:
    """A computation's path leads through all of its tasks."""
    computations = {t.computation for t in found}
    return tuple(what_if((t for t in everything if t.computation in computations), ours))


def _selected(found: list[Task], only: Mapping[str, str]) -> list[Task]:
    wanted: list[tuple[Callable[[Task], str], str]] = [(BY[name], value) for name, value in only.items()]
    return [task for task in found if all(of(task) == value for of, value in wanted)]


def _extent(spans: Sequence[Span], found: Sequence[Task]) -> Extent:
    return Extent(
        len(spans),
        sum(t.count for t in found),
        sum(t.count for t in found if t.span.operation == names.TASKS),
        len({t.span.trace_id for t in found}),
        len({t.computation for t in found}),
        len({t.worker for t in found}),
        min((t.span.start for t in found), default=0) / 1e9,
        max((t.span.end for t in found), default=0) / 1e9,
    )
