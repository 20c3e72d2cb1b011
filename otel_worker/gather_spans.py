"""The span of a `Worker.gather`, below which its requests stand: the scheduler replicates or rebalances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace

from otel_worker import names, wire
from otel_worker.budget import DROPPED
from otel_worker.spans import GAP

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from otel_worker.facts import Gather
    from otel_worker.spans import Emitter


class GatherSpans:
    """Observes gathers."""

    def __init__(self, emitter: Emitter) -> None:
        self._emit = emitter

    def context(self, gather: Gather) -> Context:
        """For its requests: its span, started now if need be, or none out of budget."""
        span = self._span(gather)
        return wire.EMPTY if span is None else trace.set_span_in_context(span, wire.EMPTY)

    def _span(self, gather: Gather) -> Span | None:
        if gather.span is None and self._emit.afford(1):
            gather.span = self._emit.start(
                names.GATHER,
                wire.EMPTY,
                gather.begun + gather.offset,
                {
                    names.FETCH_KEYS: self._emit.texts(gather.keys),
                    names.FETCH_KEY_COUNT: len(gather.keys),
                    names.FETCH_REASON: names.REASON_GATHER,
                },
            )
        span: Span | None = gather.span
        return span

    def gather_ended(self, gather: Gather) -> None:
        span = self._span(gather)
        if span is None:
            self._emit.budget.count(DROPPED)
            return
        span.set_attributes({names.OUTCOME: gather.outcome, names.FETCH_NBYTES: gather.nbytes})
        if span.is_recording():
            self._emit.spill_spans(
                gather.spills or (),
                trace.set_span_in_context(span, wire.EMPTY),
                {names.SPILL_CAUSE: "store", names.SPILL_TRIGGER_KEY: ", ".join(self._emit.texts(gather.keys))},
            )
        if gather.failure is not None:
            self._emit.fail(span, gather.failure)
        span.end(max(gather.begun, gather.ended + GAP) + gather.offset)
