"""What every span of ours has in common: how it is started, timed, cut to size, and paid for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from otel_worker import names, wire
from otel_worker.budget import RECORDED, UNSAMPLED
from otel_worker.facts import hashed, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

    from otel_worker.budget import Budget
    from otel_worker.facts import Failure, Key, SpillOp
    from otel_worker.settings import Settings

GAP = 1000  # ns by which a span ends before the next begins: consecutive phases do not touch
MAX_COMPUTATIONS = 1000
Attributes = dict[str, Any]


def seconds(ns: int) -> float:
    return ns / 1e9


def in_seconds(prefix: str, parts: dict[str, int] | None) -> Attributes:
    """Attributes of a breakdown: `prefix` + activity -> seconds."""
    return {prefix + name: seconds(ns) for name, ns in (parts or {}).items()}


class Computation:
    """One submission, as its tasks know it: where they belong, and how many spans of it were recorded here."""

    __slots__ = ("context", "id", "refused", "share", "used")

    def __init__(self, context: Context, share: int, computation: str) -> None:
        self.context = context
        self.share = share
        self.id = computation
        self.used = 0
        self.refused: Span | None = None  # what stands for its tasks' spans when the sampler did not want them

    def parent(self) -> SpanContext:
        return trace.get_current_span(self.context).get_span_context()


class Emitter:
    """Starts and ends spans for one worker, within its budget."""

    def __init__(self, tracer: Tracer, settings: Settings, budget: Budget, now: Callable[[], int]) -> None:
        self.tracer = tracer
        self.settings = settings
        self.budget = budget
        self.now = now
        self.lock = threading.RLock()
        self.group: Callable[[Any], str] = str
        self.prefix: Callable[[Any], str] = str
        self._hash_keys = settings.hash_keys
        self.actors: Container[Any] = ()  # the keys of this worker's actors, live
        self.worker: Attributes = {}
        self.min_phase = settings.min_phase_ns
        self._computations: OrderedDict[str, Computation] = OrderedDict()

    # --- text --------------------------------------------------------------------------------------------------------

    def text(self, key: Key) -> str:
        """A key or group as it leaves: readable, of bounded length, and valid UTF-8 whatever it was, or its hash."""
        text = key if isinstance(key, str) else str(key)
        return hashed(text, self.prefix(key)) if self._hash_keys else readable(text, self.settings.max_key_length)

    def texts(self, keys: Iterable[Key]) -> list[str]:
        return [self.text(key) for key, _ in zip(keys, range(self.settings.max_keys), strict=False)]

    # --- spans -------------------------------------------------------------------------------------------------------

    def afford(self, n: int, *, urgent: bool = False) -> bool:
        return self.budget.take(n, self.now(), urgent=urgent)

    def could(self, n: int, *, urgent: bool = False) -> bool:
        """Whether `afford` would say yes now."""
        return self.budget.could(n, self.now(), urgent=urgent)

    def start(
        self,
        name: str,
        parent: Context,
        at: int,
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        """Start a span that was paid for. Where the sampler refuses it, nothing more is computed for it."""
        span = self.tracer.start_span(
            name, parent, kind, {**self.worker, **attributes}, links, start_time=at, record_exception=False
        )
        self.budget.count(RECORDED if span.is_recording() else UNSAMPLED)
        return span

    def phase(self, name: str, parent: Context, begin: int, end: int, attributes: Attributes) -> None:
        span = self.start(name, parent, begin, attributes)
        span.end(max(begin, end - GAP))

    def long_enough(self, begin: int, end: int) -> bool:
        return begin > 0 and end - begin >= self.min_phase and end > 0

    def fail(self, span: Span, failure: Failure | None, description: str = "") -> None:
        """Set ERROR, `error.type`, and as much of the exception as the settings let out."""
        kind = failure.type if failure else "unknown"
        span.set_attribute(names.ERROR_TYPE, kind)
        span.set_status(Status(StatusCode.ERROR, description or (failure.message if failure else "") or kind))

    def exception_event(self, span: Span, failure: Failure | None, at: int) -> None:
        if failure is None:
            return
        attributes = {
            names.EXCEPTION_TYPE: failure.type,
            names.EXCEPTION_MESSAGE: failure.message,
            names.EXCEPTION_STACKTRACE: failure.stacktrace,
        }
        span.add_event("exception", {name: value for name, value in attributes.items() if value}, at)

    # --- computations ------------------------------------------------------------------------------------------------

    def computation(self, annotations: Any) -> Computation | None:
        """What a task's annotation names; parsed once for each submission."""
        value = annotations.get(wire.KEY) if annotations else None
        if value is None:
            return None
        name = value.get("computation") if isinstance(value, dict) else None
        if isinstance(name, str) and (known := self._computations.get(name)) is not None:
            return known
        if (read := wire.read_annotation(annotations)) is None or (context := wire.extract(read[0])) is None:
            return None
        made = self._computations[read[2]] = Computation(context, read[1], read[2])
        if len(self._computations) > MAX_COMPUTATIONS:
            self._computations.popitem(last=False)
        return made

    def place(self, computation: Computation, spans: int) -> tuple[Context, list[Link]]:
        """Below `compute` while its trace has room for so many spans more, else a root that links to it."""
        computation.used += spans
        parent = computation.parent()
        apart = self.settings.trace_per_task or computation.used > computation.share
        if apart and parent.trace_flags.sampled:
            return wire.EMPTY, [Link(parent)]
        return computation.context, []

    def known_computation(self, name: str) -> SpanContext | None:
        """The span context of a `compute` by its id, while it is remembered."""
        found = self._computations.get(name)
        return found.parent() if found is not None else None

    # --- spills ------------------------------------------------------------------------------------------------------

    def spill_spans(self, ops: Iterable[SpillOp], parent: Context, attributes: Attributes) -> None:
        """`spill` and `unspill` below the phase that caused them, when they failed or were long enough."""
        for op in ops:
            if (op.failure or self.long_enough(op.begun, op.ended)) and self.afford(1):
                self.spill_span(op, parent, attributes)

    def spill_span(self, op: SpillOp, parent: Context, attributes: Attributes) -> None:
        name = names.UNSPILL if op.reading else names.SPILL
        offset = op.offset
        about = {
            **attributes,
            names.SPILL_KEY: self.text(op.key),
            names.SPILL_NBYTES: op.nbytes,
            names.OUTCOME: op.outcome,
        }
        span = self.start(name, parent, op.begun + offset, about)
        if span.is_recording():
            context = trace.set_span_in_context(span, wire.EMPTY)
            for child, begin, end in _spill_phases(op):
                if self.long_enough(begin, end) and self.afford(1):
                    self.phase(child, context, begin + offset, end + offset, attributes)
            if op.failure:
                self.fail(span, op.failure)
        span.end(max(op.begun, op.ended - GAP) + offset)


def _spill_phases(op: SpillOp) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    if op.reading:
        return (names.UNSPILL_READ, op.io_begun, op.io_ended), (names.UNSPILL_DESERIALIZE, op.io_ended, op.ended)
    return (
        (names.SPILL_SERIALIZE, op.begun, op.io_begun or op.ended),
        (names.SPILL_WRITE, op.io_begun, op.io_ended or op.ended),
    )
