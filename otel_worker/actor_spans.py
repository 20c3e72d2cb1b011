"""The spans of calls of actors, where the actor lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from otel_worker import names, wire
from otel_worker.budget import DROPPED, UNSAMPLED
from otel_worker.facts import redacted
from otel_worker.spans import in_seconds, seconds
from otel_worker.standin import StandIn

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    from otel_worker.actor_facts import ActorCall
    from otel_worker.spans import Attributes, Emitter


class Held:
    """The span of one call, if it is real already, and its stand-in."""

    __slots__ = ("span", "standin")

    def __init__(self) -> None:
        self.span: Span | None = None
        self.standin: StandIn | None = None


class ActorSpans:
    """Observes calls."""

    def __init__(self, emitter: Emitter) -> None:
        self._emit = emitter

    def method_context(self, call: ActorCall) -> Context:
        """The context for the actor's method: a stand-in, which becomes real when somebody needs it and the budget allows."""
        held = self._held(call)
        if held.standin is None:
            held.standin = StandIn(self, call)
        return trace.set_span_in_context(held.standin, call.remote or wire.EMPTY)

    @staticmethod
    def _held(call: ActorCall) -> Held:
        if call.span is None:
            call.span = Held()
        held: Held = call.span
        return held

    def run_span(self, call: ActorCall) -> Span | None:
        """The real span of a call, started now if need be; None out of budget."""
        with self._emit.lock:
            held = self._held(call)
            if held.span is None:
                held.span = self._start(call)
            return held.span

    def ancestor(self, call: ActorCall) -> SpanContext:
        """The caller's span, which may be invalid."""
        return trace.get_current_span(call.remote or wire.EMPTY).get_span_context()

    def _start(self, call: ActorCall) -> Span | None:
        above = self.ancestor(call)
        if above.is_valid and not above.trace_flags.sampled:
            self._emit.budget.count(UNSAMPLED)
            return trace.NonRecordingSpan(above)
        if not self._emit.afford(1, urgent=call.failure is not None):
            return None
        attributes: Attributes = {
            names.TASK_KEY: self._emit.text(call.key),
            names.TASK_PREFIX: call.prefix,
            names.ACTOR_METHOD: call.method,
            names.PEER_KIND: call.peer_kind or "unknown",
            names.LOOP_DELAY: seconds(call.loop),
        }
        if call.peer:
            attributes[names.PEER_ADDRESS] = redacted(call.peer)
        at = call.begun + call.offset
        name = f"{names.ACTOR} {call.name}"
        return self._emit.start(name, call.remote or wire.EMPTY, at, attributes, kind=SpanKind.SERVER)

    def call_ended(self, call: ActorCall) -> None:
        span = self.run_span(call)
        held = self._held(call)
        if held.standin is not None:
            held.standin.close(span)
        if span is None:
            self._emit.budget.count(DROPPED)
            return
        if span.is_recording():
            self._describe(call, span)
        span.end(call.ended + call.offset)

    def _describe(self, call: ActorCall, span: Span) -> None:
        attributes: Attributes = {
            names.OUTCOME: call.outcome,
            names.EXECUTOR: call.executor,
            **in_seconds(names.ACTOR_TIME_PREFIX, call.parts()),
        }
        if call.thread_id:
            attributes |= {names.THREAD_ID: call.thread_id, names.THREAD_NAME: call.thread_name}
        span.set_attributes(attributes)
        if call.failure is not None:
            self._emit.exception_event(span, call.failure, call.ended + call.offset)
            self._emit.fail(span, call.failure)
