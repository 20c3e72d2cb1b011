"""What is installed once in a process: its recorders, observers and tracers, and the facts that the hooks state.

Together with `hooks.py` this is what reads Dask's objects; every method called from a hook runs under the guard.
"""

from __future__ import annotations

import errno
import re
import sys
import threading
import weakref
from functools import cached_property
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import context as context_api

from otel_worker import answers, wire
from otel_worker.actor_spans import ActorSpans
from otel_worker.actors import Actors
from otel_worker.budget import Budget
from otel_worker.dashboard_hooks import add_later
from otel_worker.endings import Endings
from otel_worker.facts import Clock, Failure, Fetch, Gather, Serve, SpillOp, Task, readable, redacted
from otel_worker.fetch_spans import FetchSpans
from otel_worker.metrics import Instruments, WorkerMetrics
from otel_worker.quiet import Quiet
from otel_worker.recorder import Recorder
from otel_worker.shuffle_spans import ShuffleSpans
from otel_worker.shuffles import Shuffles
from otel_worker.spans import Emitter
from otel_worker.stuck import Stuck
from otel_worker.submissions import Submission, Submissions
from otel_worker.task_spans import TaskSpans
from otel_worker.thread_hooks import watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_worker.guard import Guard
    from otel_worker.providers import Providers
    from otel_worker.settings import Settings

OUTCOMES = {
    "GatherDepSuccessEvent": "success",
    "GatherDepBusyEvent": "busy",
    "GatherDepNetworkFailureEvent": "network_failure",
    "GatherDepFailureEvent": "failure",
}
_CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*")
MAX_TEXT = 10_000  # characters of an exception's message or traceback


class _Operations(threading.local):
    """The spill operations that run now in this thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[SpillOp] = []


class WorkerSpans:
    """The observer that shows one worker's facts as spans."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.tasks = TaskSpans(emitter)
        self.fetches = FetchSpans(emitter, self.tasks)
        self.task_ended = self.tasks.task_ended
        self.shuffles = ShuffleSpans(emitter, self.tasks)
        self.actors = ActorSpans(emitter)
        self.key_released = self.tasks.key_released
        self.fetch_ended = self.fetches.fetch_ended
        self.serve_ended = self.fetches.serve_ended
        self.gather_ended = self.fetches.gathers.gather_ended
        self.spill_ended = self.fetches.spill_ended
        self.loop_blocked = self.fetches.loop_blocked
        self.end_interval = self.tasks.end_interval
        self.interval_ends = 0
        self.stuck: Stuck | None = None


class Runtime:
    """The state of one `instrument()`."""

    def __init__(self, load: Callable[[], Settings], providers: Providers, guard: Guard) -> None:
        self._load = load
        self.providers = providers
        self.guard = guard
        self.clock = Clock()
        self.by_counter: dict[Any, Recorder] = {}
        self.by_worker: dict[int, Recorder] = {}
        self.by_slow: dict[int, Recorder] = {}
        self.spans: dict[Recorder, WorkerSpans] = {}
        self.operations = _Operations()
        self.shuffles = Shuffles(self)
        self.actors = Actors(self)
        self._closed: list[Recorder] = []
        self.on_client: Callable[[Any], object] | None = None  # called with each client that submits something
        self.submissions = Submissions(self._client_emitter, self.clock)
        end_all = guard("exit", self._end_all)
        self._endings = Endings(lambda: end_all(perf_counter_ns()))
        self._quiet = Quiet()

    @cached_property
    def settings(self) -> Settings:
        """Read when the first worker or client is made: only then Dask's configuration is there for sure."""
        return self._load()

    @cached_property
    def instruments(self) -> Instruments:
        """Made with the first worker."""
        return Instruments(self.providers.meter(), perf_counter_ns)

    # --- making and closing ------------------------------------------------------------------------------------------------

    def _emitter(self, role: str) -> Emitter:
        self._endings.bound(self.providers.flushable())
        self._quiet.install()
        budget = Budget(self.settings.span_budget, self.settings.span_burst, perf_counter_ns())
        return Emitter(self.providers.tracer(role), self.settings, budget, perf_counter_ns)

    def _client_emitter(self) -> Emitter:
        return self._emitter("client")

    def worker_made(self, worker: Any, now: int) -> None:
        from dask.utils import key_split
        from distributed.utils import key_split_group

        interval = int(getattr(worker, "_tick_interval", 0.02) * 1e9)
        recorder = Recorder(worker.state, self.clock, now, tick_interval=interval)
        emitter = self._emitter("worker")
        emitter.group, emitter.prefix = key_split_group, key_split
        emitter.actors = worker.state.actors
        spans = self.spans[recorder] = WorkerSpans(emitter)
        metrics = self.instruments.workers[recorder] = WorkerMetrics(recorder, self.settings, self.instruments)
        metrics.spans = lambda: dict(emitter.budget.spans)
        spans.stuck = Stuck(recorder, emitter, now)
        answers.bind(self, worker)
        # Metrics first: they read the fetch's span for exemplars.
        recorder.observers += [_guarded(metrics, "metrics", self.guard), _guarded(spans, "spans", self.guard)]
        self.by_counter[worker.state.task_counter] = recorder
        self.by_worker[id(worker)] = recorder
        slow = _slow(worker)
        if slow is not None:
            self.by_slow[id(slow)] = recorder
        weakref.finalize(worker, self._forget, id(worker), worker.state.task_counter, id(slow)).atexit = False

    def adopt_running(self) -> None:
        """Workers that were made before us: each on its own event loop."""
        module = sys.modules.get("distributed.worker")
        for worker in list(module.Worker._instances) if module is not None else ():
            if worker.status.name in ("running", "paused"):
                worker.loop.add_callback(self.adopt, worker)
        module = sys.modules.get("distributed.scheduler")
        for scheduler in list(module.Scheduler._instances) if module is not None else ():
            if scheduler.status.name == "running":
                scheduler.loop.add_callback(add_later, scheduler, self.guard)

    def adopt(self, worker: Any) -> None:
        """Observe a worker that runs already, from its next step on. Call it on the worker's event loop."""
        if id(worker) not in self.by_worker:
            self.guard("adopt", self._adopt)(worker, perf_counter_ns())

    def _adopt(self, worker: Any, now: int) -> None:
        """What `__init__` bound before we came is bound anew: two handlers, and the tick."""
        self.worker_made(worker, now)
        self.by_worker[id(worker)].found(worker.state.tasks.values(), now)
        for op in ("get_data", "gather", "actor_execute", "actor_attribute"):
            worker.handlers[op] = getattr(worker, op)
        if (shuffle := worker.extensions.get("shuffle")) is not None:
            worker.handlers.update(
                shuffle_receive=shuffle.shuffle_receive, shuffle_inputs_done=shuffle.shuffle_inputs_done
            )
        for executor in worker.executors.values():
            watched(executor, self.guard)
        worker.periodic_callbacks["tick"].callback = worker._measure_tick
        add_later(worker, self.guard)

    def _forget(self, worker: int, counter: Any, slow: int) -> None:
        recorder = self.by_worker.pop(worker, None)
        self.by_counter.pop(counter, None)
        self.by_slow.pop(slow, None)
        if recorder is not None:
            self.spans.pop(recorder, None)
            self._closed.append(recorder)

    def worker_closed(self, worker: Any, now: int) -> bool:
        """End what is open; True the first time."""
        recorder = self.by_worker.get(id(worker))
        if recorder is None:
            return False
        self._end(recorder, now)
        self._forget(id(worker), worker.state.task_counter, id(_slow(worker)))
        return True

    def _end(self, recorder: Recorder, now: int) -> None:
        recorder.close(now)
        self.shuffles.close(recorder, now)
        self.actors.close(recorder, now)
        self.spans[recorder].tasks.close()

    def start_flush(self) -> None:
        """As `flush`, but nobody waits."""
        self._endings.start_flush(self.providers.flushable(), self.settings.flush_timeout)

    async def flush(self) -> None:
        """Export what was recorded, within `flush_timeout`; never raises. Closed workers' last sums are among it."""
        closed, self._closed = self._closed, []
        await self._endings.flush(self.providers.flushable(), self.settings.flush_timeout)
        for recorder in closed:
            self.instruments.workers.pop(recorder, None)

    def close(self, now: int) -> None:
        """Observing ends: workers that run on are silent from now on."""
        self._endings.release()
        self._quiet.undo()
        made = bool(self.by_worker)
        self._end_all(now)
        if made:
            self.instruments.workers.clear()

    def _end_all(self, now: int) -> None:
        for recorder in list(self.by_worker.values()):
            self._end(recorder, now)
        self.submissions.close(now)
        for held in (self.by_counter, self.by_worker, self.by_slow, self.spans):
            held.clear()

    def _recorder(self, worker: Any) -> Recorder | None:
        recorder = self.by_worker.get(id(worker))
        if recorder is not None and not recorder.address:
            self._identify(recorder, worker)
        return recorder

    def _identify(self, recorder: Recorder, worker: Any) -> None:
        """The address is known once the worker listens."""
        from otel_worker.names import WORKER_ADDRESS, WORKER_NAME

        try:
            recorder.address = redacted(worker.address)
        except ValueError:
            return
        recorder.name = str(worker.name)
        emitter = self.spans[recorder].emitter
        emitter.worker = {WORKER_ADDRESS: recorder.address, WORKER_NAME: recorder.name}

    # --- the state machine -----------------------------------------------------------------------------------------------

    moved = staticmethod(Recorder.moved)
    holders_changed = staticmethod(Recorder.holders_changed)

    def instruction_taken(self, worker: Any, task: Any, now: int) -> Task | Fetch | None:
        """An asynchronous instruction is done; return the record that pays for storing its result."""
        recorder = self.by_worker.get(id(worker))
        if recorder is None or task.cancelled() or task.exception() is not None:
            return None
        event = task.result()
        kind = type(event).__name__
        if kind in OUTCOMES:
            return self._fetch_taken(recorder, event, OUTCOMES[kind], worker.state.tasks, now)
        if kind == "RetryBusyWorkerEvent":
            recorder.busy_ended(event.worker, now)
            return None
        record = recorder.tasks.get(getattr(event, "key", ""))
        if record is not None and record.executing:
            failure = self._failure(record, event) if kind == "ExecuteFailureEvent" else None
            if not record.run_begun:
                self._foreign_run(record, event, now)
            recorder.execute_taken(record, now, failure=failure, rescheduled=kind == "RescheduleEvent")
            return record
        return None

    def _fetch_taken(self, recorder: Recorder, event: Any, outcome: str, tasks: Any, now: int) -> Fetch | None:
        fetch = recorder.fetches.get(event.worker)
        if fetch is None:
            return None
        data = getattr(event, "data", ())
        failure = fetch.failure
        if outcome == "failure":
            failure = self._told_failure(event, failure.type if failure else "")
        elif outcome == "network_failure" and failure is None:
            failure = Failure("OSError")
        elif outcome in ("success", "busy"):
            failure = None
        if outcome == "success" and not data:
            outcome = "missing"
        elif outcome == "success" and len(data) < len(fetch.keys):
            gone = (tasks[key] for key in fetch.keys if key not in data and key in tasks)
            fetch.missing_nbytes = sum(task.get_nbytes() for task in gone)
        recorder.fetch_taken(fetch, outcome, now, failure=failure, received=len(data))
        return fetch

    def instruction_stored(self, fetch: Fetch) -> None:
        fetch.recorder.fetch_ended(fetch)

    def _told_failure(self, event: Any, kind: str) -> Failure:
        """As much of a failure as the settings let out; Dask made the texts, so no code of the user's runs here."""
        text = readable(event.exception_text, MAX_TEXT)
        if not kind:
            found = _CLASS_NAME.match(text)
            kind = found.group() if found else "Exception"
        capture = self.settings.capture_exceptions
        message = "" if capture == "type" else text
        return Failure(kind, message, readable(event.traceback_text, MAX_TEXT) if capture == "stacktrace" else "")

    def _failure(self, record: Task, event: Any) -> Failure:
        return self._told_failure(event, record.failure.type if record.failure else "")

    def _foreign_run(self, record: Task, event: Any, now: int) -> None:
        """A process pool runs its tasks where no hook is: all that is known is when it says that it began and ended."""
        start, stop = getattr(event, "start", None), getattr(event, "stop", None)
        if not start or not stop:
            return
        record.submitted = max([record.loading, *(op.ended for op in record.spills or ())])
        record.run_begun = min(now, max(record.submitted, int(start * 1e9) - record.offset))
        record.run_ended = min(now, max(record.run_begun, int(stop * 1e9) - record.offset))
        record.executor = "process"

    # --- arrival -----------------------------------------------------------------------------------------------------------

    def stream_began(self, worker: Any) -> Recorder | None:
        """The scheduler's stream to this worker is read from now on in this context."""
        return self.by_worker.get(id(worker))

    def batch_decoded(self, recorder: Recorder, messages: Any, begun: int, ended: int) -> None:
        batch = messages if isinstance(messages, (list, tuple)) else (messages,)
        tasks = sum(1 for message in batch if isinstance(message, dict) and message.get("op") == "compute-task")
        recorder.decoded(begun, ended, tasks)

    # --- execution ---------------------------------------------------------------------------------------------------------

    def execute_began(self, worker: Any, key: Any, now: int) -> Task | None:
        recorder = self._recorder(worker)
        return None if recorder is None else recorder.execute_began(key, now)

    def run_began(self, task: Task) -> int:
        """Make the task's stand-in current; return the thread's CPU time so far."""
        task.run_begun = perf_counter_ns()
        spans = self.spans.get(task.recorder)
        if spans is not None:
            context_api.attach(spans.tasks.run_context(task))
        thread = threading.current_thread()
        task.thread_id, task.thread_name = thread.native_id or 0, thread.name
        task.executor = "thread"
        return thread_time_ns()

    def run_ended(self, task: Task, cpu: int | None, result: Any) -> None:
        if cpu is not None:
            task.run_cpu = thread_time_ns() - cpu
        task.run_ended = perf_counter_ns()
        error = result.get("actual_exception") if isinstance(result, dict) else None
        if error is not None:
            task.failure = Failure(_qualified(error))

    # --- fetches -----------------------------------------------------------------------------------------------------------

    def fetch_began(self, worker: Any, peer: str, keys: Any, nbytes: int, now: int) -> Fetch | None:
        recorder = self._recorder(worker)
        return None if recorder is None else recorder.fetch_began(peer, keys, nbytes, now)

    def request_sent(self, fetch: Fetch, comm: Any, now: int) -> dict[str, str] | None:
        """Start the request's span; what to add to the message, or None towards a peer that would not expect it."""
        fetch.sent = now
        fetch.peer_known = wire.announced(getattr(comm, "remote_info", None))
        spans = self.spans.get(fetch.recorder)
        if spans is None:
            return None
        context = spans.fetches.request_context(fetch)
        if not fetch.peer_known:
            return None
        return {} if context is None else wire.carrier(context)

    def first_byte(self, fetch: Fetch, now: int) -> None:
        fetch.first_byte = now
        fetch.local_loop = fetch.recorder.loop_delay(now, fetch.sent)

    def reply_received(self, fetch: Fetch, reply: Any, now: int) -> None:
        if not fetch.received:
            fetch.received = fetch.deserialized = now  # inproc: no frames to read
        told = wire.read_trailer(reply)
        if isinstance(reply, dict):
            reply.pop(wire.KEY, None)
        fetch.peer_known = told is not None or (fetch.peer_known and wire.is_busy(reply))
        if told is not None:
            fetch.peer_loop, fetch.peer_unspill = told["loop"], told["unspill"]
            fetch.peer_spill, fetch.peer_serialize = told["spill"], told["serialize"]

    def deserialized(self, fetch: Fetch) -> None:
        """Below Dask's offload threshold, deserializing blocks the event loop."""
        if not fetch.offloaded:
            fetch.recorder.worked(fetch.received, fetch.deserialized, "deserialize", next(iter(fetch.keys), None))

    def fetch_failed(self, fetch: Fetch, error: BaseException) -> None:
        fetch.failure = self._raised(error)

    # --- gathers -----------------------------------------------------------------------------------------------------------

    def gather_began(self, worker: Any, who_has: Any, now: int) -> Gather | None:
        recorder = self._recorder(worker)
        return None if recorder is None else recorder.gather_began(wire.asked(who_has), now)

    def gather_asks(self, gather: Gather, peer: str, keys: Any, now: int) -> Fetch | None:
        return None if gather.ended else gather.recorder.gather_asks(gather, peer, wire.asked(keys), now)

    def gather_asked(self, gather: Gather, fetch: Fetch, reply: Any, error: BaseException | None, now: int) -> None:
        data = reply.get("data", ()) if isinstance(reply, dict) else ()
        outcome = "busy" if isinstance(reply, dict) and reply.get("status") == "busy" else "success"
        if outcome == "success" and not data:
            outcome = "missing"
        if error is not None:
            outcome = "network_failure" if isinstance(error, OSError) else "failure"
        failure = fetch.failure or self._raised(error)
        gather.recorder.gather_asked(gather, fetch, outcome, now, failure=failure, received=len(data))

    def gather_ended(self, worker: Any, gather: Gather, result: Any, error: BaseException | None, now: int) -> None:
        tasks = worker.state.tasks
        gather.nbytes = sum(tasks[key].nbytes or 0 for key in gather.keys if key in tasks)
        whole = isinstance(result, dict) and result.get("status") == "OK"
        outcome = "success" if whole else "missing" if error is None else "failure"
        gather.recorder.gather_ended(gather, outcome, now, failure=self._raised(error))

    def _raised(self, error: BaseException | None) -> Failure | None:
        if error is None:
            return None
        return Failure(_qualified(error), "" if self.settings.capture_exceptions == "type" else _message(error))

    def owner_role(self, pool: Any) -> dict[str, Any] | None:
        """What a connection pool's owner says of itself where it connects: a client, or a scheduler."""
        owner = pool.server() if pool.server is not None else None
        kinds = {kind.__name__.lower() for kind in type(owner).__mro__}
        return next((wire.role_announcement(role) for role in wire.ROLES if role in kinds), None)

    # --- serving -----------------------------------------------------------------------------------------------------------

    def announcement(self, listener: Any) -> dict[str, Any] | None:
        """A listener announces us only if its own worker's bound `get_data` is ours, so that it strips our key for ever."""
        handler = getattr(listener, "comm_handler", None) or getattr(listener, "handler", None)
        server = getattr(handler, "__self__", None)
        if id(server) not in self.by_worker:
            return None
        handlers = getattr(server, "handlers", {})
        if not hasattr(handlers.get("get_data"), "_otel_worker"):
            return None
        called = all(hasattr(handlers.get(op), "_otel_worker") for op in wire.CALLED)
        return wire.announcement(wire.CALLS if called else wire.GET_DATA)

    def serve_began(self, worker: Any, comm: Any, keys: Any, who: Any, carrier: Any, now: int) -> Serve | None:
        recorder = self._recorder(worker)
        if recorder is None:
            return None
        serve = recorder.serve_began(wire.asked(keys), who, now)
        serve.remote = wire.extract(carrier) if carrier else None
        if not who:
            serve.peer_kind = wire.asker(getattr(comm, "remote_info", None), who)
        return serve

    def serve_ended(self, worker: Any, serve: Serve, result: Any, error: BaseException | None, now: int) -> None:
        if serve.writing and not serve.serialized:
            serve.serialized = serve.written
        if serve.writing and not serve.offloaded:
            serve.recorder.worked(serve.writing, serve.serialized, "serialize", next(iter(serve.keys), None))
        tasks = worker.state.tasks
        serve.nbytes = sum(tasks[key].nbytes or 0 for key in serve.keys if key in tasks)
        outcome = "success"
        if error is not None:
            serve.failure = Failure(_qualified(error))
            outcome = "failure"
        elif isinstance(result, dict):
            outcome = str(result.get("status"))
        serve.recorder.serve_ended(serve, outcome, now)

    # --- spilling ------------------------------------------------------------------------------------------------------------

    def spill_began(self, slow: Any, key: Any, cause: Any, now: int, *, reading: bool) -> SpillOp | None:
        recorder = self.by_slow.get(id(slow))
        if recorder is None:
            return None
        if cause is not None and (cause.recorder is not recorder or _is_over(cause)):
            cause = None
        return recorder.spill_began(key, cause, now, reading=reading)

    def spill_ended(self, slow: Any, op: SpillOp, error: BaseException | None, now: int) -> None:
        weight = slow.weight_by_key.get(op.key)
        op.nbytes = weight.disk if weight is not None else 0
        if error is not None:
            op.outcome = _spill_outcome(error)
            op.failure = Failure(_qualified(error.__cause__ or error))
        recorder = self.by_slow.get(id(slow))
        if recorder is not None:
            recorder.spill_ended(op, now)

    # --- the event loop ------------------------------------------------------------------------------------------------------

    def ticked(self, server: Any, now: int) -> None:
        recorder = self._recorder(server)
        if recorder is None:
            return
        late = recorder.tick(now)
        metrics = self.instruments.workers.get(recorder)
        if metrics is not None:
            metrics.lag(late)
        spans = self.spans.get(recorder)
        if spans is not None and now >= spans.interval_ends:
            spans.interval_ends = now + int(self.settings.coalesce_interval * 1e9)
            spans.end_interval()
        if spans is not None and spans.stuck is not None and now >= spans.stuck.due:
            self.guard("stuck", spans.stuck.look)(now)

    # --- the client ------------------------------------------------------------------------------------------------------------

    def submit_began(self, client: Any, keys: Any, now: int) -> Submission | None:
        from dask.utils import key_split

        if self.on_client is not None:
            self.guard("client", self.on_client)(client)
        return self.submissions.begin(keys, key_split, _worker_count(client), now)

    def submit_ended(self, submission: Submission, futures: Any, now: int) -> None:
        states = [future._state for future in (futures or {}).values()]
        self.submissions.submitted(submission, states, now)

    def future_ended(self, state: Any, now: int) -> None:
        self.submissions.future_ended(state, state.status, now)

    @staticmethod
    def annotate(annotation: Any) -> Any:
        import dask

        return dask.annotate(**{wire.KEY: annotation})


def _guarded(observer: Any, what: str, guard: Guard) -> Any:
    """The same observer, each of its methods with a net of its own."""
    for name in OBSERVED:
        if not hasattr(observer, name):
            continue
        setattr(observer, name, guard(f"{what}.{name}", getattr(observer, name)))
    return observer


OBSERVED = (
    "task_ended",
    "fetch_ended",
    "serve_ended",
    "gather_ended",
    "spill_ended",
    "key_released",
    "loop_blocked",
    "end_interval",
)


def _slow(worker: Any) -> Any:
    """The `Slow` of a worker that spills, else None (`data` may be any mapping)."""
    data = getattr(worker, "data", None)
    return getattr(data, "_slow_uncached", None)


def _spill_outcome(error: BaseException) -> str:
    """Why a value was not spilled, or not read back; Dask's exceptions are private to its spill buffer."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk_full"
    return {"MaxSpillExceeded": "max_spill", "PickleError": "not_pickled"}.get(type(error).__name__, "failure")


def _is_over(cause: Any) -> bool:
    return bool(cause.stored if type(cause) is Fetch else cause.ended)


def _message(error: BaseException) -> str:
    try:
        return readable(str(error), MAX_TEXT)
    except Exception:  # the user's own `__str__`
        return ""


def _qualified(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _worker_count(client: Any) -> int:
    info = getattr(client, "_scheduler_identity", None) or {}
    return int(info.get("n_workers") or len(info.get("workers") or ()) or 1)
