"""The patches of P2P shuffles and rechunks, and their hooks; a part of the table in `hooks.py`."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from otel_worker import names, wire
from otel_worker.current import CURRENT, below, telling
from otel_worker.patches import Patch
from otel_worker.shuffle_facts import Background, step_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_worker.guard import Guard
    from otel_worker.shuffles import Shuffles

CORE = "distributed.shuffle._core"
PLUGIN = "distributed.shuffle._worker_plugin"

SHUFFLE_TABLE: tuple[Patch, ...] = (
    Patch(PLUGIN, "ShuffleWorkerPlugin", "add_partition", "shuffle_transfer", ("self", "data", "partition_id", "id")),
    Patch(PLUGIN, "ShuffleWorkerPlugin", "barrier", "shuffle_barrier", ("self", "shuffle_id", "run_ids")),
    Patch(
        PLUGIN,
        "ShuffleWorkerPlugin",
        "get_output_partition",
        "shuffle_unpack",
        ("self", "shuffle_id", "run_id", "partition_id"),
    ),
    Patch(
        PLUGIN, "ShuffleWorkerPlugin", "shuffle_receive", "shuffle_receive", ("self", "shuffle_id", "run_id", "data")
    ),
    Patch(PLUGIN, "ShuffleWorkerPlugin", "shuffle_inputs_done", "shuffle_flush", ("self", "shuffle_id", "run_id")),
    Patch(CORE, "ShuffleRun", "_capture_metrics", "shuffle_metrics", ("self", "where")),
    Patch(CORE, "ShuffleRun", "barrier", "shuffle_reached", ("self", "run_ids")),
    Patch(CORE, "ShuffleRun", "flush_receive", "shuffle_flush_disk", ("self",)),
    Patch(
        "distributed.shuffle._buffer", "ShardsBuffer", "process", "shuffle_process", ("self", "id", "shards", "size")
    ),
)


class ShuffleHooks:
    """Makes the replacements; `shuffles` states the facts."""

    def __init__(self, shuffles: Shuffles, safe: Guard) -> None:
        self._shuffles = shuffles
        self._safe = safe

    # --- what a task does, in its thread ---------------------------------------------------------------------------------

    def shuffle_transfer(self, original: Any) -> Any:
        step = self._step(names.SHUFFLE_TRANSFER)

        def add_partition(self: Any, data: Any, partition_id: Any, id: Any, **kwargs: Any) -> Any:  # noqa: A002
            return step(id, partition_id, lambda: original(self, data, partition_id, id, **kwargs))

        return add_partition

    def shuffle_barrier(self, original: Any) -> Any:
        step = self._step(names.SHUFFLE_BARRIER)

        def barrier(self: Any, shuffle_id: Any, run_ids: Any) -> Any:
            return step(shuffle_id, None, lambda: original(self, shuffle_id, run_ids))

        return barrier

    def shuffle_unpack(self, original: Any) -> Any:
        step = self._step(names.SHUFFLE_UNPACK)

        def get_output_partition(
            self: Any, shuffle_id: Any, run_id: Any, partition_id: Any, *args: Any, **kw: Any
        ) -> Any:
            return step(shuffle_id, partition_id, lambda: original(self, shuffle_id, run_id, partition_id, *args, **kw))

        return get_output_partition

    def _step(self, kind: str) -> Callable[[Any, Any, Callable[[], Any]], Any]:
        began = self._safe("shuffle_step", self._shuffles.step_began)
        ended = self._safe("shuffle_step_end", self._shuffles.step_ended)

        def within(shuffle_id: Any, partition: Any, call: Callable[[], Any]) -> Any:
            step = began(CURRENT.get(), kind, shuffle_id, partition, now())
            if step is None:
                return call()
            error = None
            try:
                return call()
            except BaseException as caught:
                error = caught
                raise
            finally:
                ended(step, error, now())

        return within

    # --- its marks: `distributed.utils.sync` runs these on the event loop, in a copy of the thread's context ----------------

    def shuffle_reached(self, original: Any) -> Any:
        def barrier(self: Any, run_ids: Any) -> Any:
            if (step := step_now(CURRENT.get())) is not None:
                step.joined = now()
            return original(self, run_ids)

        return barrier

    def shuffle_flush_disk(self, original: Any) -> Any:
        async def flush_receive(self: Any) -> Any:
            if (step := step_now(CURRENT.get())) is None:
                return await original(self)
            step.flush_begun = now()
            try:
                return await original(self)
            finally:
                step.flush_ended = now()

        return flush_receive

    def shuffle_metrics(self, original: Any) -> Any:
        """Hear what Dask hears, and tell a run's background tasks, which are made in here, what they work for."""
        from distributed.metrics import context_meter

        began = self._safe("shuffle_metrics", self._shuffles.capture_began)

        @contextmanager
        def _capture_metrics(self: Any, where: str) -> Iterator[None]:
            capture = began(self, where, CURRENT.get(), now())
            if capture is None:
                with original(self, where):
                    yield
                return
            callback, background = capture
            token = CURRENT.set(background or CURRENT.get())
            try:
                with original(self, where), context_meter.add_callback(callback, allow_offload="background" in where):
                    yield
            finally:
                CURRENT.reset(token)

        return _capture_metrics

    # --- what the worker does meanwhile, on its event loop -------------------------------------------------------------------

    def shuffle_process(self, original: Any) -> Any:
        """One batch of a run's buffer: of the one, it is sent to a peer; of the other, it is written to disk."""
        from distributed.metrics import context_meter

        began = self._safe("shuffle_process", self._shuffles.process_began)
        ended = self._safe("shuffle_process_end", self._shuffles.transport_ended)

        async def process(self: Any, id: Any, shards: Any, size: Any) -> Any:  # noqa: A002
            background = CURRENT.get()
            if type(background) is not Background:
                return await original(self, id, shards, size)
            record = began(background, id, shards, size, now())
            if record is None:
                return await original(self, id, shards, size)
            before = self._exception
            token = CURRENT.set(record)
            try:
                with context_meter.add_callback(record.meter):
                    return await original(self, id, shards, size)
            finally:
                CURRENT.reset(token)
                ended(record, self._exception if self._exception is not before else None, now())

        return process

    def shuffle_receive(self, original: Any) -> Any:
        """Bound into the handlers of each worker when its plugin is set up: it strips our key for ever."""
        from distributed.metrics import context_meter

        began = self._safe("shuffle_receive", self._shuffles.receive_began)
        ended = self._safe("shuffle_receive_end", self._shuffles.receive_ended)

        async def shuffle_receive(self: Any, shuffle_id: Any, run_id: Any, data: Any, **extra: Any) -> Any:
            told = extra.pop(wire.KEY, None)
            record = began(self, shuffle_id, data, told, now())
            if record is None:
                return await original(self, shuffle_id, run_id, data, **extra)
            with context_meter.add_callback(record.meter):
                return await below(record, original(self, shuffle_id, run_id, data, **extra), partial(ended, record))

        shuffle_receive._otel_worker = True  # type: ignore[attr-defined]
        return shuffle_receive

    def shuffle_flush(self, original: Any) -> Any:
        began = self._safe("shuffle_flush", self._shuffles.flush_began)
        ended = self._safe("shuffle_flush_end", self._shuffles.transport_ended)

        async def shuffle_inputs_done(self: Any, shuffle_id: Any, run_id: Any) -> Any:
            record = began(self, shuffle_id, run_id, now())
            if record is None:
                return await original(self, shuffle_id, run_id)
            return await telling(
                original(self, shuffle_id, run_id), lambda _result, error, at: ended(record, error, at)
            )

        return shuffle_inputs_done
