"""The span that is current inside a task: light until somebody needs it, then real if the budget allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import SpanContext, Status, StatusCode
    from opentelemetry.util.types import Attributes, AttributeValue


class Source(Protocol):
    """Where the real spans come from, of a task or of a call of an actor."""

    def run_span(self, work: Any, /) -> trace.Span | None: ...
    def ancestor(self, work: Any, /) -> SpanContext: ...


class StandIn(trace.Span):
    """Answers with the real span of `run` where there is one, else with the nearest real ancestor.

    `source` makes the real span of `task`, or None out of budget; after the task's end it is not asked any more.
    So no exported span names a parent that was not exported.
    """

    __slots__ = ("_over", "_real", "_source", "_task")

    def __init__(self, source: Source, task: Any) -> None:
        self._source = source
        self._task = task
        self._over = False
        self._real: trace.Span | None = None

    def real(self) -> trace.Span | None:
        if self._real is None and not self._over:
            self._real = self._source.run_span(self._task)
        return self._real

    def close(self, real: trace.Span | None) -> None:
        """The task is over: whoever asks later gets what there is, now or never."""
        self._over = True
        if self._real is None:
            self._real = real

    def get_span_context(self) -> SpanContext:
        real = self.real()
        return self._source.ancestor(self._task) if real is None else real.get_span_context()

    def is_recording(self) -> bool:
        real = self.real()
        return real is not None and real.is_recording()

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        if (real := self.real()) is not None:
            real.set_attributes(attributes)

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if (real := self.real()) is not None:
            real.set_attribute(key, value)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        if (real := self.real()) is not None:
            real.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        if (real := self.real()) is not None:
            real.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        """The name is the operation's; a user's own name belongs on a span of his own."""

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        if (real := self.real()) is not None:
            real.set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        if (real := self.real()) is not None:
            real.record_exception(exception, attributes, timestamp, escaped)

    def end(self, end_time: int | None = None) -> None:
        """Dask ends it, not the user's function."""

    def __exit__(self, *_: object) -> None:
        """Nothing ends here either."""
