"""A preload that traces a worker the usual way: a worker plugin with a span a task and a span for each of its states.

Nothing is bounded and nothing is carried between processes; it is here to be measured beside us.
"""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin
from opentelemetry import trace

PHASES = {
    "waiting": "waiting",
    "ready": "ready",
    "constrained": "ready",
    "executing": "execute",
    "long-running": "execute",
    "fetch": "fetch.queued",
    "flight": "fetch",
}


class PlainSpans(WorkerPlugin):
    """Held by Dask; told of each transition."""

    def __init__(self) -> None:
        self.tracer = trace.get_tracer("plain")
        self.tasks: dict[Any, Any] = {}
        self.phases: dict[Any, Any] = {}
        self.worker: Any = None

    def setup(self, worker: Any) -> None:
        self.worker = worker

    def transition(self, key: Any, _start: str, finish: str, **_: Any) -> None:
        phase = self.phases.pop(key, None)
        if phase is not None:
            phase.end()
        name = PHASES.get(finish)
        if name is not None:
            self.phases[key] = self.start(key, name)
        elif (task := self.tasks.pop(key, None)) is not None:
            task.set_attribute("dask.outcome", finish)
            task.end()

    def start(self, key: Any, name: str) -> Any:
        state = self.worker.state.tasks[key]
        about = {
            "dask.task.key": str(key),
            "dask.task.prefix": state.prefix,
            "dask.worker.address": self.worker.address,
            "dask.worker.name": str(self.worker.name),
        }
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = self.tracer.start_span(f"task {state.prefix}", attributes=about)
        return self.tracer.start_span(name, trace.set_span_in_context(task), attributes=about)


async def dask_setup(worker: Any) -> None:
    await worker.plugin_add(PlainSpans(), name="plain-spans")
