"""Spans as frozen data, whatever they were read from."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

Value = Any  # str | bool | int | float | list | dict, as OTLP's AnyValue
Ref = tuple[str, str]  # trace id, span id
StatusCode = Literal["unset", "ok", "error"]

# msgspec's structs: slots, and made 3 times as fast as frozen dataclasses, which a million spans feel. Nothing in
# them can refer back to them, so the cyclic garbage collector need not know them.


class Resource(Struct, frozen=True, gc=False):
    """The process that a span comes from; spans of one process share the object."""

    attributes: Mapping[str, Value] = {}

    @property
    def service(self) -> str:
        return str(self.attributes.get("service.name", "unknown_service"))

    @property
    def host(self) -> str:
        return str(self.attributes.get("host.name", ""))


class Link(Struct, frozen=True, gc=False):
    trace_id: str
    span_id: str
    attributes: Mapping[str, Value] = {}

    @property
    def ref(self) -> Ref:
        return self.trace_id, self.span_id


class Event(Struct, frozen=True, gc=False):
    name: str
    time: int  # nanoseconds since the epoch
    attributes: Mapping[str, Value] = {}


class Span(Struct, frozen=True, gc=False):
    """Ids in lower-case hex, times in nanoseconds since the epoch, `parent_id` empty for a root."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start: int
    end: int
    kind: str = "internal"
    attributes: Mapping[str, Value] = {}
    resource: Resource = Resource()
    scope: str = ""
    links: tuple[Link, ...] = ()
    events: tuple[Event, ...] = ()
    status: StatusCode = "unset"
    status_message: str = ""

    @property
    def ref(self) -> Ref:
        return self.trace_id, self.span_id

    @property
    def parent_ref(self) -> Ref:
        return self.trace_id, self.parent_id

    @property
    def duration(self) -> int:
        return self.end - self.start

    @property
    def service(self) -> str:
        return self.resource.service

    @property
    def operation(self) -> str:
        """The name without the task prefix that four of ours end with."""
        return self.name.partition(" ")[0]


class Traces(Struct, frozen=True):
    """What a source held: its spans, and in sentences what could not be read.

    Where metrics are among it, `fates` is how many spans the workers recorded, coalesced, dropped, by their own count.
    """

    spans: tuple[Span, ...] = ()
    problems: tuple[str, ...] = ()
    fates: Mapping[str, int] = {}


def number(value: Value) -> float:
    """An attribute of a stranger as a finite number; what is none is 0."""
    return float(value) if isinstance(value, (int, float)) and -_MOST < value < _MOST else 0.0


_MOST = 1e18


def by_ref(spans: Iterable[Span]) -> dict[Ref, Span]:
    return {(s.trace_id, s.span_id): s for s in spans}


def children(spans: Iterable[Span]) -> dict[Ref, list[Span]]:
    """Each parent's spans by start; a missing parent has an entry too."""
    found: dict[Ref, list[Span]] = defaultdict(list)
    for span in spans:
        if span.parent_id:
            found[span.trace_id, span.parent_id].append(span)
    for siblings in found.values():
        if len(siblings) > 1:
            siblings.sort(key=_by_start)
    return dict(found)


def _by_start(span: Span) -> tuple[int, int, str]:
    return span.start, span.end, span.name
