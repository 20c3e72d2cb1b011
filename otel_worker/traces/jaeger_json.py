"""Jaeger's own JSON (`/api/traces`, and what its page downloads) -> spans; its times are microseconds."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from otel_worker.traces.collected import Collected
from otel_worker.traces.data import Event, Link, Resource, Span, StatusCode


def _jaeger_name(name: str) -> str:
    """trace_id is traceID there, start_time startTime."""
    first, *others = name.split("_")
    return first + "".join("ID" if other == "id" else other.capitalize() for other in others)


class _Tag(Struct, frozen=True, gc=False, rename=_jaeger_name):
    key: str = ""
    value: Any = None


class _Reference(Struct, frozen=True, gc=False, rename=_jaeger_name):
    ref_type: str = ""
    trace_id: str = ""
    span_id: str = ""


class _Log(Struct, frozen=True, gc=False, rename=_jaeger_name):
    timestamp: int = 0
    fields: list[_Tag] | None = None


class _Process(Struct, frozen=True, gc=False, rename=_jaeger_name):
    service_name: str = ""
    tags: list[_Tag] | None = None


class _Span(Struct, frozen=True, gc=False, rename=_jaeger_name):
    trace_id: str = ""
    span_id: str = ""
    operation_name: str = ""
    references: list[_Reference] | None = None
    start_time: int = 0
    duration: int = 0
    tags: list[_Tag] | None = None
    logs: list[_Log] | None = None
    process_id: str = ""


class Trace(Struct, frozen=True, gc=False, rename=_jaeger_name):
    spans: list[_Span] | None = None
    processes: dict[str, _Process] | None = None


def add_trace(trace: Trace, into: Collected) -> None:
    processes = trace.processes or {}
    resources = {name: _resource(process, into) for name, process in processes.items()}
    for span in trace.spans or ():
        if span.trace_id and span.span_id:
            into.add(_span(span, resources.get(span.process_id, Resource())))
        else:
            into.problems.add("A span without ids was left out", span.operation_name)


def _resource(process: _Process, into: Collected) -> Resource:
    return into.resource({"service.name": process.service_name, **_attributes(process.tags)})


def _span(found: _Span, resource: Resource) -> Span:
    attributes = _attributes(found.tags)
    kind = str(attributes.pop("span.kind", "internal"))
    scope = str(attributes.pop("otel.scope.name", ""))
    message = str(attributes.pop("otel.status_description", ""))
    status = _status(attributes)
    parent, links = _parent_and_links(found.references or ())
    start = found.start_time * 1000
    return Span(
        found.trace_id.zfill(32),
        found.span_id.zfill(16),
        parent,
        found.operation_name,
        start,
        start + found.duration * 1000,
        kind,
        attributes,
        resource,
        scope,
        links,
        tuple(_event(log) for log in found.logs or ()),
        status,
        message,
    )


def _parent_and_links(references: Iterable[_Reference]) -> tuple[str, tuple[Link, ...]]:
    """The first CHILD_OF is the parent; all others were links."""
    parent, links = "", []
    for reference in references:
        if reference.ref_type == "CHILD_OF" and not parent:
            parent = reference.span_id.zfill(16)
        else:
            links.append(Link(reference.trace_id.zfill(32), reference.span_id.zfill(16)))
    return parent, tuple(links)


def _status(attributes: dict[str, Any]) -> StatusCode:
    """Takes the tags that Jaeger made of the status out again."""
    code = attributes.pop("otel.status_code", None)
    failed = attributes.pop("error", False)
    return "error" if code == "ERROR" or failed is True else "ok" if code == "OK" else "unset"


def _event(log: _Log) -> Event:
    attributes = _attributes(log.fields)
    return Event(str(attributes.pop("event", "")), log.timestamp * 1000, attributes)


def _attributes(tags: list[_Tag] | None) -> dict[str, Any]:
    return {tag.key: tag.value for tag in tags or ()}
