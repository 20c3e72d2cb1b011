"""P2P shuffles and rechunks: what `shuffle_hooks` sees, as facts for the observers. It reads Dask's runs and their plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_worker import names, wire
from otel_worker.facts import MAX_PREFIX, Task, readable
from otel_worker.open_records import OpenRecords
from otel_worker.shuffle_facts import Background, Shuffle, Step, Transport, activity, step_now

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from opentelemetry.context import Context

    from otel_worker.metrics import WorkerMetrics
    from otel_worker.recorder import Recorder
    from otel_worker.runtime import Runtime, WorkerSpans

MAX_PARTITIONS = 1000  # of one batch that are looked at
QUIET = ("Reschedule", "ShuffleClosedError")  # how Dask tells a task to come again: no failure


class Shuffles(OpenRecords[Transport]):
    """The shuffles of this process's workers."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._runs: WeakKeyDictionary[Any, Shuffle] = WeakKeyDictionary()

    # --- tasks -------------------------------------------------------------------------------------------------------------

    def step_began(self, task: Any, kind: str, shuffle_id: Any, partition: Any, now: int) -> Step | None:
        if type(task) is not Task or task.ended:
            return None
        step = Step(kind, str(shuffle_id), partition, now)
        if task.steps is None:
            task.steps = []
        task.steps.append(step)
        return step

    def step_ended(self, step: Step, error: BaseException | None, now: int) -> None:
        if step.ended:
            return
        step.ended = now
        if error is not None and type(error).__name__ not in QUIET:
            step.failure = self._runtime._raised(error)

    # --- runs --------------------------------------------------------------------------------------------------------------

    def capture_began(
        self, run: Any, where: str, task: Any, now: int
    ) -> tuple[Callable[[Hashable, float, str], None], Background | None] | None:
        """Dask begins to meter for a run; return who listens too, and what the tasks that are made meanwhile work for."""
        shuffle = self._of(run)
        if shuffle is None:
            return None
        _belongs(shuffle, task)
        if where.startswith("background"):
            metrics = self._runtime.instruments.workers.get(shuffle.recorder)
            background = Background(shuffle, where)
            where = activity(where)

            def metered(label: Hashable, value: float, unit: str) -> None:
                if metrics is not None:
                    metrics.shuffle_metered(f"{where}.{activity(label)}", value, unit)

            return metered, background
        if (step := step_now(task)) is None:
            return None
        if step.kind == names.SHUFFLE_TRANSFER:
            step.joined = now
            shuffle.transfers[step.partition] = task.key
        return lambda *told: step.metered.append(told), None

    def _of(self, run: Any) -> Shuffle | None:
        shuffle = self._runs.get(run)
        if shuffle is None:
            recorder = self._runtime.by_worker.get(id(getattr(run.digest_metric, "__self__", None)))
            if recorder is not None:
                shuffle = self._runs[run] = Shuffle(str(run.id), run.run_id, recorder)
        return shuffle

    # --- transports ----------------------------------------------------------------------------------------------------------

    def _transport(
        self, kind: str, shuffle_id: Any, shuffle: Shuffle | None, recorder: Recorder, now: int
    ) -> Transport:
        record = Transport(kind, readable(str(shuffle_id), MAX_PREFIX), shuffle, recorder, now)
        self.open.add(record)
        return record

    def process_began(self, background: Background, target: str, shards: Any, size: int, now: int) -> Transport | None:
        shuffle = background.shuffle
        if shuffle.recorder not in self._runtime.spans:
            return None
        sends = background.where == "background-comms"
        kind = names.SHUFFLE_SEND if sends else names.SHUFFLE_WRITE
        record = self._transport(kind, shuffle.id, shuffle, shuffle.recorder, now)
        record.nbytes = size
        if sends:
            record.peer = readable(target, MAX_PREFIX)
            record.partitions = list({shard[0]: None for shard in shards[:MAX_PARTITIONS]})
        return record

    def request_sent(self, record: Transport, comm: Any, now: int) -> dict[str, Any] | None:
        """Start the span of a batch that is sent; what to add to its message, or None towards a peer that would not expect it."""
        record.sent = now
        record.peer_known = wire.announced(getattr(comm, "remote_info", None), wire.CALLS)
        spans = self._runtime.spans.get(record.recorder)
        context: Context | None = spans.shuffles.send_context(record) if spans is not None else None
        if not record.peer_known:
            return None
        annotations = record.shuffle.annotations if record.shuffle is not None else None
        return wire.call(context, record.recorder.address, "worker", annotations)

    def receive_began(self, plugin: Any, shuffle_id: Any, data: Any, told: Any, now: int) -> Transport | None:
        recorder = self._runtime._recorder(plugin.worker)
        if recorder is None:
            return None
        record = self._transport(names.SHUFFLE_RECEIVE, shuffle_id, None, recorder, now)
        record.loop = recorder.loop_delay(now)
        record.nbytes = _volume(data)
        record.remote, peer, record.peer_kind = wire.read_call(told)
        record.peer = readable(peer, MAX_PREFIX)
        record.peer_known = bool(peer)
        record.annotations = wire.read_call_annotations(told)
        return record

    def receive_ended(self, record: Transport, result: Any, error: BaseException | None, now: int) -> None:
        failed = isinstance(result, dict) and result.get("status") == "error"
        self._ended(record, "failure" if failed or error is not None else "success", error, now)

    def flush_began(self, plugin: Any, shuffle_id: Any, run_id: Any, now: int) -> Transport | None:
        recorder = self._runtime._recorder(plugin.worker)
        if recorder is None or not wire.asked([shuffle_id]):
            return None
        run = plugin.shuffle_runs._active_runs.get(shuffle_id)
        shuffle = self._of(run) if run is not None and run.run_id == run_id else None
        return self._transport(names.SHUFFLE_FLUSH, shuffle_id, shuffle, recorder, now)

    def transport_ended(self, record: Transport, error: BaseException | None, now: int) -> None:
        if record.kind == names.SHUFFLE_WRITE:
            record.recorder.worked(record.begun, now, names.SHUFFLE_WRITE, None)
        self._ended(record, "success" if error is None else "failure", error, now)

    def _meter(self, metrics: WorkerMetrics, record: Transport) -> None:
        metrics.transport_ended(record)

    def _show(self, spans: WorkerSpans, record: Transport) -> None:
        spans.shuffles.transport_ended(record)


def _belongs(shuffle: Shuffle, cause: Any) -> None:
    """A run belongs to the submission of the first task or message that it is met in."""
    if shuffle.annotations is None and type(cause) in (Task, Transport):
        shuffle.annotations = cause.annotations
    if not shuffle.prefix and type(cause) is Task:
        shuffle.prefix = cause.prefix


def _volume(data: Any) -> int:
    """Bytes of the shards of a message, by what their buffers say; nothing is measured by pickling."""
    if isinstance(data, (list, tuple)):
        return sum(map(_volume, data))
    if isinstance(data, (bytes, bytearray)):
        return len(data)
    nbytes = getattr(data, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0
