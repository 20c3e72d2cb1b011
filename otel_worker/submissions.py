"""The client's half: `compute` from submission until every wanted future has ended, and `submit` below it."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import SpanKind, Status, StatusCode

from otel_worker import names, wire
from otel_worker.budget import DROPPED
from otel_worker.facts import MAX_PREFIX, readable
from otel_worker.spans import GAP
from otel_worker.task_spans import TYPICAL_SPANS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    from otel_worker.facts import Clock
    from otel_worker.spans import Emitter

MIN_SHARE = 100  # spans of one trace that each worker may make, however many workers there are
LIBRARIES = ("dask", "distributed", "otel_worker", "tornado", "asyncio", "threading", "toolz", "tlz")


class Place(NamedTuple):
    """Where in traces the tasks of a submission are."""

    trace_id: str
    computation: str
    apart: bool  # each task is a trace of its own, for sure


class Submission:
    """One call that sends tasks to the scheduler."""

    __slots__ = ("annotation", "begun", "failed", "left", "offset", "place", "span", "states")

    def __init__(self, annotation: Any, span: Span | None, begun: int, offset: int, place: Place) -> None:
        self.annotation = annotation
        self.place = place
        self.span = span
        self.begun = begun
        self.offset = offset
        self.left = 0
        self.failed = 0
        self.states: Counter[str] = Counter()


class Submissions:
    """The submissions of this process's clients.

    `by_future` holds those that have futures to wait for, `places` where to find what the client's futures stand for.
    """

    def __init__(self, emitter: Callable[[], Emitter], clock: Clock) -> None:
        self._make = emitter
        self._made: Emitter | None = None
        self._clock = clock
        self.by_future: dict[Any, list[Submission]] = {}
        self.places: dict[Any, Place] = {}

    @property
    def _emit(self) -> Emitter:
        self._made = self._made or self._make()
        return self._made

    def begin(
        self, keys: Collection[Any], key_split: Callable[[Any], str], workers: int, now: int
    ) -> Submission | None:
        if not keys or not is_instrumentation_enabled():
            return None
        current = context_api.get_current()
        offset = self._clock.offset
        if not self._emit.afford(2):
            self._emit.budget.count(DROPPED, 2)
            return self._unrecorded(current, len(keys), workers, now, offset)
        prefix = readable(Counter(key_split(key) for key in islice(keys, 1000)).most_common(1)[0][0], MAX_PREFIX)
        attributes = {names.COMPUTE_KEYS: len(keys), names.TASK_PREFIX: prefix, **_calling_line()}
        span = self._emit.start(f"{names.COMPUTE} {prefix}", current, now + offset, attributes)
        if not span.get_span_context().is_valid:
            return None  # no SDK is configured
        computation = format(span.get_span_context().span_id, "016x")
        span.set_attribute(names.COMPUTATION, computation)
        annotation = wire.annotation(trace.set_span_in_context(span, current), self._share(workers), computation)
        return Submission(annotation, span, now, offset, self._place(span.get_span_context(), len(keys)))

    def _place(self, context: SpanContext, keys: int) -> Place:
        settings = self._emit.settings
        apart = settings.trace_per_task or keys * TYPICAL_SPANS > settings.max_trace_spans
        return Place(format(context.trace_id, "032x"), format(context.span_id, "016x"), apart)

    def _unrecorded(self, current: Context, keys: int, workers: int, now: int, offset: int) -> Submission | None:
        """Out of budget: the tasks hang below the user's own span, if there is one."""
        user = trace.get_current_span(current).get_span_context()
        if not user.is_valid:
            return None
        annotation = wire.annotation(current, self._share(workers), format(user.span_id, "016x"))
        return Submission(annotation, None, now, offset, self._place(user, keys))

    def _share(self, workers: int) -> int:
        return max(MIN_SHARE, self._emit.settings.max_trace_spans // max(1, workers))

    def submitted(self, submission: Submission, states: Collection[Any], now: int) -> None:
        """The graph is on its way; `states` are the futures that the client has of it."""
        for state in states:
            self.places.setdefault(state, submission.place)  # who wanted it first had it computed
        span = submission.span
        if span is None or not span.is_recording():
            return
        below = trace.set_span_in_context(span, wire.EMPTY)
        submit = self._emit.start(names.SUBMIT, below, submission.begun + submission.offset, {}, kind=SpanKind.PRODUCER)
        submit.end(max(submission.begun, now - GAP) + submission.offset)
        for state in states:
            if state.done():
                continue
            submission.left += 1
            self.by_future.setdefault(state, []).append(submission)
        if not submission.left:
            self._end(submission, now)

    def place(self, state: Any) -> Place | None:
        """Where what this future stands for is to be found, until the client has no future of it."""
        return self.places.get(state)

    def text(self, key: Any) -> str:
        """A key as it stands in attributes."""
        return self._emit.text(key)

    def future_ended(self, state: Any, status: str, now: int) -> None:
        if status == "cancelled":  # released, too
            self.places.pop(state, None)
        for submission in self.by_future.pop(state, ()):
            submission.left -= 1
            submission.states[status] += 1
            if submission.left == 0:
                self._end(submission, now)

    def _end(self, submission: Submission, now: int, outcome: str = "") -> None:
        span = submission.span
        if span is None:
            return
        states = submission.states
        if not outcome:
            outcome = next((s for s in ("error", "cancelled") if states[s]), "finished")
        span.set_attribute(names.OUTCOME, outcome)
        if states["error"]:
            span.set_status(Status(StatusCode.ERROR, f"{states['error']} of its futures failed"))
        span.end(now + submission.offset)
        submission.span = None

    def close(self, now: int) -> None:
        """Observing ends: what is open ends with it."""
        for submissions in list(self.by_future.values()):
            for submission in submissions:
                self._end(submission, now, "closed")
        self.by_future.clear()
        self.places.clear()


def _calling_line() -> dict[str, Any]:
    """The line of the user's code that submits: the nearest frame outside of the libraries between it and here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
        frame = frame.f_back
    if frame is None:
        return {}
    return {
        names.CODE_FUNCTION: frame.f_code.co_name,
        names.CODE_FILE: frame.f_code.co_filename,
        names.CODE_LINE: frame.f_lineno,
    }
