"""The table of patches and their hooks: Dask's calls -> facts. The only file that knows Dask's insides.

A hook is a few lines: read what the call already has, state the fact, call through. Each factory takes the original and
returns its replacement; what it calls of ours is guarded, so that no exception of ours reaches Dask. Hooks are plain
closures: wrapt's function wrapper costs a microsecond a call, and some of these are called several times a task.
"""

from __future__ import annotations

from asyncio import Event, current_task, get_running_loop, wait_for
from asyncio import TimeoutError as AsyncioTimeoutError
from contextlib import suppress
from contextvars import ContextVar
from functools import partial, wraps
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from otel_worker import wire
from otel_worker.actor_hooks import ACTOR_TABLE, ActorHooks
from otel_worker.call_hooks import CALL_TABLE, CallHooks
from otel_worker.comm_proxy import CommProxy
from otel_worker.current import CURRENT, below
from otel_worker.dashboard_hooks import DASHBOARD_TABLE, DashboardHooks
from otel_worker.endings import ends_without_exit
from otel_worker.facts import Fetch, Gather, Serve, Task
from otel_worker.patches import Patch
from otel_worker.shuffle_hooks import SHUFFLE_TABLE, ShuffleHooks
from otel_worker.thread_hooks import THREAD_TABLE, ThreadHooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_worker.recorder import Recorder
    from otel_worker.runtime import Runtime

# Seconds that closing a worker may take before what is open ends: close waits for running tasks, and the Nanny kills.
PATIENCE = 1.0

# The recorder of the worker whose stream from the scheduler is read in this context.
STREAM: ContextVar[Recorder | None] = ContextVar("otel_worker_stream", default=None)

# What the owner of the pool that connects in this context says of itself.
ROLE: ContextVar[dict[str, Any] | None] = ContextVar("otel_worker_role", default=None)

STATE_MACHINE = "distributed.worker_state_machine"
WORKER = "distributed.worker"
CORE = "distributed.core"

TABLE: tuple[Patch, ...] = (
    Patch(STATE_MACHINE, "TaskCounter", "transitions", "transitions", ("self", "prev_states")),
    Patch(STATE_MACHINE, "WorkerState", "_update_who_has", "update_who_has", ("self", "who_has")),
    Patch(STATE_MACHINE, "BaseWorker", "_finish_async_instruction", "finish", ("self", "task")),
    Patch(WORKER, "Worker", "__init__", "worker_init", ("self",)),
    Patch(WORKER, "Worker", "close", "worker_close", ("self",)),
    Patch(WORKER, "Worker", "handle_scheduler", "handle_scheduler", ("self", "comm")),
    Patch(WORKER, "Worker", "execute", "execute", ("self", "key", "stimulus_id")),
    Patch(WORKER, "Worker", "gather_dep", "gather_dep", ("self", "worker", "to_gather", "total_nbytes", "stimulus_id")),
    Patch(WORKER, "Worker", "get_data", "get_data", ("self", "comm", "keys", "who", "serializers")),
    Patch(WORKER, "Worker", "gather", "gather", ("self", "who_has")),
    Patch(WORKER, "", "get_data_from_worker", "get_data_from_worker", ("rpc", "keys", "worker")),
    Patch(WORKER, "", "_run_task", "run_task", ("task", "data", "execution_state", "key")),
    Patch(WORKER, "", "_run_task_async", "run_task_async", ("task", "data", "time_delay")),
    Patch(WORKER, "", "run_in_executor_with_context", "run_in_executor", ("executor", "func")),
    Patch(WORKER, "", "send_recv", "send_recv", ("comm",)),
    Patch(CORE, "Server", "_measure_tick", "tick", ("self",)),
    Patch(CORE, "Server", "finished", "finished", ("self",)),
    Patch(CORE, "ConnectionPool", "_connect", "pool_connect", ("self", "addr")),
    Patch(CORE, "", "connect", "connect", ("addr",)),
    Patch("distributed.comm.core", "Comm", "handshake_info", "handshake_info", ("self",)),
    Patch(
        "distributed.comm.core", "Listener", "on_connection", "on_connection", ("self", "comm", "handshake_overrides")
    ),
    Patch("distributed.comm.tcp", "BaseTCPConnector", "connect", "dial", ("self", "address")),
    Patch("distributed.comm.tcp", "", "read_bytes_rw", "read_bytes", ("stream", "n")),
    Patch("distributed.comm.tcp", "", "from_frames", "from_frames", ("frames",)),
    Patch("distributed.comm.ws", "", "from_frames", "from_frames", ("frames",)),
    Patch("distributed.comm.utils", "", "offload", "offload", ("func",)),
    Patch("distributed.spill", "Slow", "__setitem__", "spill", ("self", "key", "value")),
    Patch("distributed.spill", "Slow", "__getitem__", "unspill", ("self", "key")),
    Patch("distributed.spill", "AnyKeyFile", "__setitem__", "disk_write", ("self", "key", "value")),
    Patch("distributed.spill", "AnyKeyFile", "__getitem__", "disk_read", ("self", "key")),
    Patch("distributed.client", "Client", "_graph_to_futures", "graph_to_futures", ("self", "_", "keys")),
    Patch("distributed.client", "FutureState", "finish", "future_ended", ("self",)),
    Patch("distributed.client", "FutureState", "cancel", "future_ended", ("self",)),
    Patch("distributed.client", "FutureState", "set_error", "future_ended", ("self",)),
    *SHUFFLE_TABLE,
    *ACTOR_TABLE,
    *CALL_TABLE,
    *THREAD_TABLE,
    *DASHBOARD_TABLE,
)


class Hooks(ShuffleHooks, ActorHooks, CallHooks, ThreadHooks, DashboardHooks):
    """Makes the replacements. `runtime` states the facts; its methods are called under the guard."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._shuffles, self._actors = runtime.shuffles, runtime.actors
        self._safe = runtime.guard
        self._closing: dict[int, tuple[Event, Any]] = {}  # by worker: set once it is flushed; the task that closes it

    def make(self, hook: str, original: Any) -> Any:
        """Return what stands in `original`'s place."""
        factory: Callable[[Any], Any] = getattr(self, hook)
        return wraps(original)(factory(original))

    # --- the state machine -----------------------------------------------------------------------------------------------

    def transitions(self, original: Any) -> Any:
        moved = self._safe("transitions", self._runtime.moved)
        recorders = self._runtime.by_counter

        def transitions(self: Any, prev_states: Any) -> None:
            original(self, prev_states)
            recorder = recorders.get(self)
            if recorder is not None:
                moved(recorder, prev_states, now())

        return transitions

    def update_who_has(self, original: Any) -> Any:
        changed = self._safe("update_who_has", self._runtime.holders_changed)
        recorders = self._runtime.by_counter

        def update_who_has(self: Any, who_has: Any) -> None:
            original(self, who_has)
            recorder = recorders.get(self.task_counter)
            if recorder is not None and recorder.wants:
                changed(recorder, who_has, self.tasks, now())

        return update_who_has

    def finish(self, original: Any) -> Any:
        taken = self._safe("finish", self._runtime.instruction_taken)
        stored = self._safe("store", self._runtime.instruction_stored)

        def _finish_async_instruction(self: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
            record = taken(self, task, now())
            if record is None:
                return original(self, task, *args, **kwargs)
            token = CURRENT.set(record)
            try:
                return original(self, task, *args, **kwargs)
            finally:
                CURRENT.reset(token)
                if type(record) is Fetch:
                    stored(record)

        return _finish_async_instruction

    # --- the worker ----------------------------------------------------------------------------------------------------------

    def worker_init(self, original: Any) -> Any:
        made = self._safe("worker_init", self._runtime.worker_made)

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            made(self, now())

        return init

    def worker_close(self, original: Any) -> Any:
        runtime = self._runtime
        closed = self._safe("worker_close", runtime.worker_closed)

        def end_early(worker: Any) -> None:
            if closed(worker, now()):
                runtime.start_flush()

        closing = self._closing

        async def close(self: Any, *args: Any, **kwargs: Any) -> Any:
            early = get_running_loop().call_later(PATIENCE, end_early, self)
            ours = (Event(), current_task())
            closing.setdefault(id(self), ours)
            try:
                return await original(self, *args, **kwargs)
            finally:
                early.cancel()
                try:
                    if closed(self, now()):
                        await runtime.flush()
                finally:
                    ours[0].set()
                    if closing.get(id(self)) is ours:
                        del closing[id(self)]

        return close

    def finished(self, original: Any) -> Any:
        """A Nanny's child ends its event loop as soon as its worker has finished: a fork not before it is flushed."""
        closing, runtime = self._closing, self._runtime

        async def finished(self: Any) -> Any:
            result = await original(self)
            flushed, closer = closing.get(id(self), (None, None))
            if flushed is not None and closer is not current_task() and ends_without_exit():
                with suppress(AsyncioTimeoutError):
                    await wait_for(flushed.wait(), runtime.settings.flush_timeout + 1)
            return result

        return finished

    def handle_scheduler(self, original: Any) -> Any:
        began = self._safe("handle_scheduler", self._runtime.stream_began)

        async def handle_scheduler(self: Any, comm: Any) -> Any:
            STREAM.set(began(self))  # a coroutine runs in a task of its own: tornado's add_callback makes it
            return await original(self, comm)

        return handle_scheduler

    def execute(self, original: Any) -> Any:
        began = self._safe("execute", self._runtime.execute_began)

        def execute(self: Any, key: Any, **kwargs: Any) -> Any:
            STREAM.set(None)
            CURRENT.set(began(self, key, now()))  # BaseWorker._start_async_instruction runs this in a task of its own
            return original(self, key, **kwargs)

        return execute

    def gather_dep(self, original: Any) -> Any:
        began = self._safe("gather_dep", self._runtime.fetch_began)

        def gather_dep(self: Any, worker: Any, to_gather: Any, total_nbytes: Any, **kwargs: Any) -> Any:
            STREAM.set(None)
            CURRENT.set(began(self, worker, to_gather, total_nbytes, now()))  # as in execute
            return original(self, worker, to_gather, total_nbytes, **kwargs)

        return gather_dep

    def run_in_executor(self, original: Any) -> Any:
        def run_in_executor_with_context(executor: Any, func: Any, /, *args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Task and not record.submitted:
                record.submitted = now()
            return original(executor, func, *args, **kwargs)

        return run_in_executor_with_context

    def run_task(self, original: Any) -> Any:
        began = self._safe("run", self._runtime.run_began)
        ended = self._safe("run_end", self._runtime.run_ended)

        def _run_task(*args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is not Task:
                return original(*args, **kwargs)
            cpu = began(record)  # run_in_executor_with_context gave us a context of our own: nothing to detach
            result = None
            try:
                result = original(*args, **kwargs)
            finally:
                ended(record, cpu, result)
            return result

        return _run_task

    def run_task_async(self, original: Any) -> Any:
        began = self._safe("run", self._runtime.run_began)
        ended = self._safe("run_end", self._runtime.run_ended)

        async def _run_task_async(*args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is not Task:
                return await original(*args, **kwargs)
            began(record)
            record.executor = "async_task"
            result = None
            try:
                result = await original(*args, **kwargs)
            finally:
                ended(record, None, result)
            return result

        return _run_task_async

    def tick(self, original: Any) -> Any:
        ticked = self._safe("tick", self._runtime.ticked)

        def _measure_tick(self: Any) -> None:
            original(self)
            ticked(self, now())

        return _measure_tick

    # --- a fetch ---------------------------------------------------------------------------------------------------------------

    def pool_connect(self, original: Any) -> Any:
        role = self._safe("role", self._runtime.owner_role)

        async def announcing(told: Any, connecting: Any) -> Any:
            token = ROLE.set(told)
            try:
                return await connecting
            finally:
                ROLE.reset(token)

        def _connect(self: Any, *args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Fetch and not record.connecting and not record.sent:
                record.connecting = now()
                record.reused = False
            return announcing(role(self), original(self, *args, **kwargs))

        return _connect

    def connect(self, original: Any) -> Any:
        failed = self._safe("connect", self._runtime.fetch_failed)

        def connect(*args: Any, **kwargs: Any) -> Any:
            if (told := ROLE.get()) is not None:
                ROLE.set(None)  # inproc starts the other side in a copy of this context
                kwargs["handshake_overrides"] = {**(kwargs.get("handshake_overrides") or {}), **told}
            record = CURRENT.get()
            if type(record) is Fetch and record.connecting and not record.sent:
                record.dialling = now()
                return _noting(original(*args, **kwargs), failed, record)
            return original(*args, **kwargs)

        return connect

    def dial(self, original: Any) -> Any:
        def connect(self: Any, *args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Fetch and not record.sent:
                record.attempts += 1
            return original(self, *args, **kwargs)

        return connect

    def handshake_info(self, original: Any) -> Any:
        """`comm.core.connect` calls it once dialling has succeeded, whatever the transport."""

        def handshake_info(self: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Fetch and record.dialling and not record.sent:
                record.handshaking = now()
            return original(self)

        return handshake_info

    def on_connection(self, original: Any) -> Any:
        overrides = self._safe("announce", self._runtime.announcement)

        def on_connection(self: Any, comm: Any, handshake_overrides: Any = None) -> Any:
            ours = overrides(self)
            if ours:
                handshake_overrides = {**(handshake_overrides or {}), **ours}
            return original(self, comm, handshake_overrides)

        return on_connection

    def send_recv(self, original: Any) -> Any:
        sends = self._safe("send_recv", self._runtime.request_sent)
        received = self._safe("receive", self._runtime.reply_received)
        failed = self._safe("receive_failed", self._runtime.fetch_failed)

        async def request(record: Fetch, comm: Any, kwargs: Any) -> Any:
            extra = sends(record, comm, now())
            if extra is not None:
                kwargs[wire.KEY] = extra
            reply = await _noting(original(comm, **kwargs), failed, record)
            received(record, reply, now())
            return reply

        def send_recv(comm: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Fetch and not record.sent and kwargs.get("op") == "get_data":
                return request(record, comm, kwargs)
            return original(comm, **kwargs)

        return send_recv

    def read_bytes(self, original: Any) -> Any:
        first = self._safe("first_byte", self._runtime.first_byte)

        def read_bytes_rw(*args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Fetch and record.sent and not record.first_byte:
                first(record, now())
            return original(*args, **kwargs)

        return read_bytes_rw

    def from_frames(self, original: Any) -> Any:
        decoded = self._safe("arrival", self._runtime.batch_decoded)
        worked = self._safe("deserialized", self._runtime.deserialized)

        async def timed(record: Fetch, args: Any, kwargs: Any) -> Any:
            record.received = now()
            try:
                return await original(*args, **kwargs)
            finally:
                record.deserialized = record.deserialized or now()
                worked(record)

        async def arriving(recorder: Recorder, args: Any, kwargs: Any) -> Any:
            begun = now()
            messages = await original(*args, **kwargs)
            decoded(recorder, messages, begun, now())
            return messages

        def from_frames(*args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if type(record) is Fetch and record.sent and not record.received:
                return timed(record, args, kwargs)
            if (recorder := STREAM.get()) is not None:
                return arriving(recorder, args, kwargs)
            return original(*args, **kwargs)

        return from_frames

    def offload(self, original: Any) -> Any:
        def begins(record: Fetch | Serve, fn: Any) -> Any:
            def timed(*args: Any, **kwargs: Any) -> Any:
                record.offloaded = now()
                try:
                    return fn(*args, **kwargs)
                finally:  # here and not where the loop takes it: that may be much later
                    if isinstance(record, Fetch):
                        record.deserialized = now()
                    elif not record.serialized:
                        record.serialized = now()

            return timed

        def offload(fn: Any, *args: Any, **kwargs: Any) -> Any:
            record = CURRENT.get()
            if (type(record) is Fetch and record.received and not record.deserialized) or (
                type(record) is Serve and record.writing and not record.written
            ):
                fn = begins(record, fn)
            return original(fn, *args, **kwargs)

        return offload

    # --- gathers -----------------------------------------------------------------------------------------------------------------

    def gather(self, original: Any) -> Any:
        """Bound into the handlers of each worker, as `get_data`."""
        began = self._safe("gather", self._runtime.gather_began)
        ended = self._safe("gather_end", self._runtime.gather_ended)

        async def gather(self: Any, who_has: Any, *args: Any, **kwargs: Any) -> Any:
            record = began(self, who_has, now())
            if record is None:
                return await original(self, who_has, *args, **kwargs)
            told = partial(ended, self, record)
            return await below(record, original(self, who_has, *args, **kwargs), told)

        return gather

    def get_data_from_worker(self, original: Any) -> Any:
        asks = self._safe("gather_asks", self._runtime.gather_asks)
        asked = self._safe("gather_asked", self._runtime.gather_asked)

        def get_data_from_worker(rpc: Any, keys: Any, worker: Any, **kwargs: Any) -> Any:
            gather = CURRENT.get()
            if type(gather) is not Gather or (record := asks(gather, worker, keys, now())) is None:
                return original(rpc, keys, worker, **kwargs)
            return below(record, original(rpc, keys, worker, **kwargs), partial(asked, gather, record))

        return get_data_from_worker

    # --- serving -----------------------------------------------------------------------------------------------------------------

    def get_data(self, original: Any) -> Any:
        """Bound into the handlers of each worker that is made while this is installed: it strips our key for ever."""
        began = self._safe("get_data", self._runtime.serve_began)
        ended = self._safe("get_data_end", self._runtime.serve_ended)
        watch = self._safe("write_buffer", CommProxy.watch_buffer)

        async def get_data(
            self: Any, comm: Any, keys: Any, who: Any = None, serializers: Any = None, **extra: Any
        ) -> Any:
            carrier = extra.pop(wire.KEY, None)
            record = began(self, comm, keys, who, carrier, now())
            if record is None:
                return await original(self, comm, keys, who=who, serializers=serializers, **extra)
            token = CURRENT.set(record)
            result = error = None
            try:
                proxy = CommProxy(comm, record, watch, asked=carrier is not None)
                result = await original(self, proxy, keys, who=who, serializers=serializers, **extra)
            except BaseException as caught:
                error = caught
                raise
            finally:
                CURRENT.reset(token)
                ended(self, record, result, error, now())
            return result

        get_data._otel_worker = True  # type: ignore[attr-defined]
        return get_data

    # --- spilling ----------------------------------------------------------------------------------------------------------------

    def spill(self, original: Any) -> Any:
        return self._spill(original, reading=False)

    def unspill(self, original: Any) -> Any:
        return self._spill(original, reading=True)

    def _spill(self, original: Any, *, reading: bool) -> Any:
        began = self._safe("spill", self._runtime.spill_began)
        ended = self._safe("spill_end", self._runtime.spill_ended)
        operations = self._runtime.operations

        def access(self: Any, key: Any, *value: Any) -> Any:
            op = began(self, key, CURRENT.get(), now(), reading=reading)
            if op is None:
                return original(self, key, *value)
            stack = operations.stack
            stack.append(op)
            error: BaseException | None = None
            try:
                return original(self, key, *value)
            except BaseException as caught:
                error = caught
                raise
            finally:
                stack.remove(op)
                ended(self, op, error, now())

        return access

    def disk_write(self, original: Any) -> Any:
        operations = self._runtime.operations

        def setitem(self: Any, key: Any, value: Any) -> Any:
            if not (stack := operations.stack):
                return original(self, key, value)
            op = stack[-1]
            op.io_begun = now()
            try:
                return original(self, key, value)
            finally:
                op.io_ended = now()

        return setitem

    def disk_read(self, original: Any) -> Any:
        operations = self._runtime.operations

        def getitem(self: Any, key: Any) -> Any:
            if not (stack := operations.stack):
                return original(self, key)
            op = stack[-1]
            op.io_begun = now()
            try:
                return original(self, key)
            finally:
                op.io_ended = now()

        return getitem

    # --- the client ----------------------------------------------------------------------------------------------------------------

    def graph_to_futures(self, original: Any) -> Any:
        begins = self._safe("submit", self._runtime.submit_began)
        ends = self._safe("submit_end", self._runtime.submit_ended)
        runtime = self._runtime

        def _graph_to_futures(self: Any, expr: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
            submission = begins(self, keys, now())
            if submission is None:
                return original(self, expr, keys, *args, **kwargs)
            futures = None
            try:
                with runtime.annotate(submission.annotation):
                    futures = original(self, expr, keys, *args, **kwargs)
                return futures
            finally:
                ends(submission, futures, now())

        return _graph_to_futures

    def future_ended(self, original: Any) -> Any:
        ended = self._safe("future", self._runtime.future_ended)
        waiting, places = self._runtime.submissions.by_future, self._runtime.submissions.places

        def future_ended(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if self in waiting or self in places:
                ended(self, now())
            return result

        return future_ended


async def _noting(awaitable: Any, failed: Any, record: Fetch) -> Any:
    """Await, and note what it raises before it goes on."""
    try:
        return await awaitable
    except BaseException as error:
        failed(record, error)
        raise
