"""Records that are open until they end, once: what calls of actors and batches of shuffles have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from otel_worker.actor_facts import ActorCall
from otel_worker.shuffle_facts import Transport

if TYPE_CHECKING:
    from otel_worker.metrics import WorkerMetrics
    from otel_worker.recorder import Recorder
    from otel_worker.runtime import Runtime, WorkerSpans

Record = TypeVar("Record", ActorCall, Transport)


class OpenRecords(Generic[Record]):
    """Keeps those of all workers of a process, and tells a worker's observers of each when it has ended."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.open: set[Record] = set()

    def _meter(self, metrics: WorkerMetrics, record: Record) -> None:
        raise NotImplementedError

    def _show(self, spans: WorkerSpans, record: Record) -> None:
        raise NotImplementedError

    def _ended(self, record: Record, outcome: str, error: BaseException | None, now: int) -> None:
        if record.ended:
            return
        record.ended = now
        record.outcome = outcome
        record.failure = self._runtime._raised(error)
        self.open.discard(record)
        metrics = self._runtime.instruments.workers.get(record.recorder)
        if metrics is not None:
            self._meter(metrics, record)
        spans = self._runtime.spans.get(record.recorder)
        if spans is not None:
            self._show(spans, record)

    def close(self, recorder: Recorder, now: int) -> None:
        """The worker is closed, or observing it ends."""
        for record in [record for record in self.open if record.recorder is recorder]:
            self._ended(record, "closed", None, now)
