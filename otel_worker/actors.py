"""Actors: what `actor_hooks` and `call_hooks` see, as facts for the observers. It reads Dask's messages and its answers."""

from __future__ import annotations

import threading
from inspect import iscoroutinefunction
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import SpanKind

from otel_worker import names, wire
from otel_worker.actor_facts import METHOD, ActorCall
from otel_worker.budget import DROPPED
from otel_worker.current import CURRENT
from otel_worker.facts import MAX_PREFIX, Task, readable
from otel_worker.open_records import OpenRecords

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from otel_worker.metrics import WorkerMetrics
    from otel_worker.runtime import WorkerSpans
    from otel_worker.spans import Emitter


class Before(NamedTuple):
    """What was current in a context that outlives a call."""

    context: Context
    record: Any
    cpu: int = 0


class Asked(NamedTuple):
    """A call that this process makes."""

    emitter: Emitter
    span: Span | None
    offset: int
    extra: dict[str, Any] | None  # what to add to the message


class Actors(OpenRecords[ActorCall]):
    """The actors of this process's workers, and the calls that its clients and workers make."""

    # --- where the actor lives ----------------------------------------------------------------------------------------------

    def call_served(
        self, worker: Any, actor: Any, method: Any, told: Any, now: int, kwargs: Any = None
    ) -> ActorCall | None:
        """An actor is called; `kwargs` are the method's, which say in what thread, and None for an attribute."""
        recorder = self._runtime._recorder(worker)
        if recorder is None or not wire.asked([actor]):  # what can't be a key Dask refuses by itself
            return None
        record = ActorCall(actor, _prefix(actor), _method(method), recorder, now)
        record.loop = recorder.loop_delay(now)
        record.blocks = _blocks(worker.state.actors.get(actor), method, kwargs)
        record.remote, peer, record.peer_kind = wire.read_call(told)
        record.peer = readable(peer, MAX_PREFIX)
        self.open.add(record)
        return record

    def entered(self, record: ActorCall) -> Before:
        """The call becomes current on the event loop, where methods run that are coroutines or want no thread."""
        before = Before(context_api.get_current(), CURRENT.get(), thread_time_ns())
        self._enter(record)
        return before

    def _enter(self, record: ActorCall) -> None:
        CURRENT.set(record)
        spans = self._runtime.spans.get(record.recorder)
        if spans is not None:
            context_api.attach(spans.actors.method_context(record))

    def left_loop(self, record: ActorCall, before: Before | None) -> None:
        """The call is over on the event loop; its CPU time is known if nothing else ran meanwhile."""
        if record.blocks and before is not None:
            record.cpu = thread_time_ns() - before.cpu
        self.left(before)

    @staticmethod
    def left(before: Before | None) -> None:
        """Set what was there, and detach nothing: a coroutine that is thrown away ends in another context."""
        if before is not None:
            CURRENT.set(before.record)
            context_api.attach(before.context)

    def run_began(self, record: ActorCall) -> Before:
        """The method runs in the actors' thread."""
        record.run_begun = perf_counter_ns()
        thread = threading.current_thread()
        record.thread_id, record.thread_name = thread.native_id or 0, thread.name
        record.executor = "actor_thread"
        return self.entered(record)

    def run_ended(self, record: ActorCall, before: Before | None) -> None:
        record.run_ended = perf_counter_ns()
        if before is not None:
            record.cpu = thread_time_ns() - before.cpu
        self.left(before)

    def call_ended(self, record: ActorCall, result: Any, error: BaseException | None, now: int) -> None:
        if isinstance(result, dict) and result.get("status") == "error":
            error = getattr(result.get("exception"), "data", None)
            self._ended(record, "error", error, now)
        else:
            self._ended(record, "success" if error is None else "error", error, now)

    def _ended(self, record: ActorCall, outcome: str, error: BaseException | None, now: int) -> None:
        if record.blocks and not record.ended:
            record.recorder.worked(record.begun, now, "actor", record.key)
        super()._ended(record, outcome, error, now)

    def _meter(self, metrics: WorkerMetrics, record: ActorCall) -> None:
        metrics.actor_called(record)

    def _show(self, spans: WorkerSpans, record: ActorCall) -> None:
        spans.actors.call_ended(record)

    # --- who calls ------------------------------------------------------------------------------------------------------------

    def call_asked(self, comm: Any, message: Any, now: int, *, direct: bool) -> Asked | None:
        """A worker or a client calls an actor; not `direct`: through the scheduler, which passes nothing of ours on."""
        if not is_instrumentation_enabled():
            return None
        cause = CURRENT.get()
        inside = type(cause) in (Task, ActorCall) and not cause.ended
        spans = self._runtime.spans.get(cause.recorder) if inside else None
        emitter = self._runtime.submissions._emit if spans is None else spans.emitter
        offset = self._runtime.clock.offset
        context, span = context_api.get_current(), None
        if emitter.afford(1):
            span = _start(emitter, context, message, now + offset)
            context = trace.set_span_in_context(span, context)
        else:
            emitter.budget.count(DROPPED)
        extra = None
        if direct and wire.announced(getattr(comm, "remote_info", None), wire.CALLS):
            address = cause.recorder.address if spans is not None else ""
            extra = wire.call(context, address, "client" if spans is None else "worker")
        return Asked(emitter, span, offset, extra)

    def call_answered(self, asked: Asked, reply: Any, error: BaseException | None, now: int) -> None:
        span = asked.span
        if span is None:
            return
        failed = error is not None
        if isinstance(reply, dict) and reply.get("status") == "error":
            failed, error = True, reply.get("exception")
        span.set_attribute(names.OUTCOME, "error" if failed else "success")
        if failed:
            asked.emitter.fail(span, self._runtime._raised(error))
        span.end(now + asked.offset)


def _blocks(actor: Any, method: Any, kwargs: Any) -> bool:
    """Whether the event loop itself runs what is called, without coming round."""
    if kwargs is None:
        return True
    in_thread = kwargs.get("separate_thread", True) if isinstance(kwargs, dict) else True
    return not in_thread and not iscoroutinefunction(getattr(type(actor), str(method), None))


def _start(emitter: Emitter, parent: Context, message: Any, at: int) -> Span:
    prefix = _prefix(message.get("actor"))
    attributes = {
        names.TASK_KEY: emitter.text(message.get("actor")),
        names.TASK_PREFIX: prefix,
        names.ACTOR_METHOD: _method(message.get(METHOD[message.get("op")])),
    }
    name = f"{names.ACTOR} {prefix}.{attributes[names.ACTOR_METHOD]}"
    return emitter.start(name, parent, at, attributes, kind=SpanKind.CLIENT)


def _prefix(key: Any) -> str:
    from dask.utils import key_split

    return readable(key_split(key), MAX_PREFIX)


def _method(name: Any) -> str:
    return readable(str(name), MAX_PREFIX)
