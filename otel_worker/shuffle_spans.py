"""The spans of P2P shuffles and rechunks beside their tasks: batches of shards that are sent, received, written and flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind

from otel_worker import names, wire
from otel_worker.budget import DROPPED, UNSAMPLED
from otel_worker.facts import redacted
from otel_worker.fetch_spans import _address
from otel_worker.spans import in_seconds, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    from otel_worker.shuffle_facts import Shuffle, Transport
    from otel_worker.spans import Attributes, Emitter
    from otel_worker.task_spans import TaskSpans

SPANS_A_BATCH = 2  # of a trace: it is sent, and received


class ShuffleSpans:
    """Observes the batches of one worker."""

    def __init__(self, emitter: Emitter, tasks: TaskSpans) -> None:
        self._emit = emitter
        self._tasks = tasks

    def send_context(self, record: Transport) -> Context | None:
        """Start `shuffle.send`; the context for the peer, or None out of budget."""
        if not self._emit.afford(1):
            self._emit.budget.count(DROPPED)
            return None
        parent, links = self._place(record.shuffle)
        record.span = self._emit.start(
            names.SHUFFLE_SEND,
            parent,
            record.begun + record.offset,
            {**self._about(record), **_address(record.peer)},
            kind=SpanKind.CLIENT,
            links=links,
        )
        return trace.set_span_in_context(record.span, wire.EMPTY)

    def transport_ended(self, record: Transport) -> None:
        span = self._started(record)
        if span is None:
            return
        if span.is_recording():
            self._describe(record, span)
        span.end(max(record.begun, record.ended) + record.offset)

    def _started(self, record: Transport) -> Span | None:
        """The span of a batch that has ended; None for what deserves none, or out of budget."""
        if record.kind == names.SHUFFLE_SEND:
            span: Span | None = record.span
            return span
        if record.kind != names.SHUFFLE_RECEIVE and not self._emit.long_enough(record.begun, record.ended):
            return None
        remote: Context | None = record.remote
        if wire.unsampled(remote):
            self._emit.budget.count(UNSAMPLED)
            return None
        if not self._emit.afford(1, urgent=record.failure is not None):
            self._emit.budget.count(DROPPED)
            return None
        parent, links = self._place(record.shuffle) if remote is None else (remote, [])
        kind = SpanKind.SERVER if record.kind == names.SHUFFLE_RECEIVE else SpanKind.INTERNAL
        at = record.begun + record.offset
        return self._emit.start(record.kind, parent, at, self._about(record), kind=kind, links=links)

    def _place(self, shuffle: Shuffle | None) -> tuple[Context, list[Link]]:
        """Where its submission says, if it has one that is known."""
        computation = self._emit.computation(shuffle.annotations) if shuffle is not None else None
        return (wire.EMPTY, []) if computation is None else self._emit.place(computation, SPANS_A_BATCH)

    def _about(self, record: Transport) -> Attributes:
        attributes: Attributes = {names.SHUFFLE_ID: record.shuffle_id}
        shuffle = record.shuffle
        if shuffle is not None:
            attributes[names.SHUFFLE_RUN_ID] = shuffle.run_id
            if shuffle.prefix:
                attributes[names.TASK_PREFIX] = shuffle.prefix
            if (computation := self._emit.computation(shuffle.annotations)) is not None:
                attributes[names.COMPUTATION] = computation.id
        if record.kind != names.SHUFFLE_FLUSH:
            attributes[names.SHUFFLE_NBYTES] = record.nbytes
        if record.peer:
            attributes[names.PEER_ADDRESS] = redacted(record.peer)
        return attributes

    def _describe(self, record: Transport, span: Span) -> None:
        attributes: Attributes = {
            names.OUTCOME: record.outcome,
            **in_seconds(names.SHUFFLE_TIME_PREFIX, record.parts()),
        }
        if record.kind == names.SHUFFLE_SEND:
            attributes[names.PEER_INSTRUMENTED] = record.peer_known
            attributes[names.SHUFFLE_PARTITIONS] = len(record.partitions)
        if record.kind == names.SHUFFLE_RECEIVE:
            attributes[names.PEER_KIND] = record.peer_kind or "worker"
            attributes[names.LOOP_DELAY] = seconds(record.loop)
        span.set_attributes(attributes)
        for context in self._transfers(record):
            span.add_link(context)
        if record.failure is not None:
            self._emit.fail(span, record.failure)

    def _transfers(self, record: Transport) -> list[SpanContext]:
        """The recorded tasks that brought in what this batch holds."""
        return list(self._produced(record))[: self._emit.settings.max_links]

    def _produced(self, record: Transport) -> Iterator[SpanContext]:
        for partition in record.partitions:
            key = record.shuffle.transfers.get(partition) if record.shuffle is not None else None
            context = self._tasks.produced.get(key) if key is not None else None
            if context is not None and context.trace_flags.sampled:
                yield context
