"""OTLP/JSON (a Collector's file exporter, our receiver, Jaeger's api_v3) and Jaeger's own JSON -> spans."""

import base64
import binascii
import contextlib
from typing import Any, Final

import msgspec
from msgspec import Struct

from otel_worker.traces import jaeger_json
from otel_worker.traces.collected import Collected
from otel_worker.traces.data import Event, Link, Resource, Span, StatusCode
from otel_worker.traces.fates import ResourceMetrics
from otel_worker.traces.salvage import salvage

# Numbers; or the enum's names, as some JSON printers of protobuf write them.
_KIND_OF: Final[dict[int | str, str]] = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
_STATUS_OF: Final[dict[int | str, StatusCode]] = {
    1: "ok",
    2: "error",
    "STATUS_CODE_OK": "ok",
    "STATUS_CODE_ERROR": "error",
}

# `strict=False` below lets msgspec turn OTLP's integers in quotes into integers.


class _AnyValue(Struct, frozen=True, gc=False, rename="camel"):
    string_value: str | None = None
    int_value: int | None = None
    double_value: float | None = None
    bool_value: bool | None = None
    array_value: dict[str, Any] | None = None
    kvlist_value: dict[str, Any] | None = None
    bytes_value: str | None = None


class _KeyValue(Struct, frozen=True, gc=False, rename="camel"):
    key: str = ""
    value: _AnyValue = _AnyValue()


class _Status(Struct, frozen=True, gc=False, rename="camel"):
    code: int | str = 0
    message: str = ""


class _Event(Struct, frozen=True, gc=False, rename="camel"):
    time_unix_nano: int = 0
    name: str = ""
    attributes: list[_KeyValue] = []


class _Link(Struct, frozen=True, gc=False, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    attributes: list[_KeyValue] = []


class _Span(Struct, frozen=True, gc=False, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    name: str = ""
    kind: int | str = 0
    start_time_unix_nano: int = 0
    end_time_unix_nano: int = 0
    attributes: list[_KeyValue] = []
    events: list[_Event] = []
    links: list[_Link] = []
    status: _Status = _Status()


class _Scope(Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""


class _ScopeSpans(Struct, frozen=True, gc=False, rename="camel"):
    scope: _Scope = _Scope()
    spans: list[_Span] = []


class _Resource(Struct, frozen=True, gc=False, rename="camel"):
    attributes: list[_KeyValue] = []


class _ResourceSpans(Struct, frozen=True, gc=False, rename="camel"):
    resource: _Resource = _Resource()
    scope_spans: list[_ScopeSpans] = []


class _Request(Struct, frozen=True, gc=False, rename="camel"):
    resource_spans: list[_ResourceSpans] = []


class _Document(Struct, frozen=True, gc=False, rename="camel"):
    """Any of: an OTLP request, the answer of Jaeger's api_v3, the answer of Jaeger's own API."""

    resource_spans: list[_ResourceSpans] = []
    resource_metrics: list[ResourceMetrics] = []
    result: _Request = _Request()
    data: list[jaeger_json.Trace] | None = None


_DECODER: Final = msgspec.json.Decoder(_Document, strict=False)


def add_document(text: bytes, into: Collected) -> None:
    """Raise ValueError where it is no such document."""
    try:
        found = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except msgspec.MsgspecError as error:  # not always a ValueError: that depends on its version
        raise ValueError(str(error)) from None
    into.new_document()
    for part in (*found.resource_spans, *found.result.resource_spans):
        _add_resource_spans(part, into)
    for metrics in found.resource_metrics:
        into.fates.add(metrics)
    for trace in found.data or ():
        jaeger_json.add_trace(trace, into)


def add_cut_document(text: bytes, into: Collected) -> int:
    """The whole spans of a document that lacks its end; how many new ones they were."""
    before = len(into)
    mended = salvage(text)
    if mended is not None:
        with contextlib.suppress(ValueError):
            add_document(mended, into)
    return len(into) - before


def _add_resource_spans(part: _ResourceSpans, into: Collected) -> None:
    resource = into.resource(_attributes(part.resource.attributes, into))
    for scope in part.scope_spans:
        name = into.share(scope.scope.name, scope.scope.name)
        for span in scope.spans:
            if span.trace_id and span.span_id:
                into.add(_span(span, resource, name, into))
            else:
                into.problems.add("A span without ids was left out", span.name)


def _span(found: _Span, resource: Resource, scope: str, into: Collected) -> Span:
    share = into.share
    trace_id, span_id, parent_id = found.trace_id, found.span_id, found.parent_span_id
    if len(trace_id) != 32 or len(span_id) != 16:
        trace_id, span_id, parent_id = _hex(trace_id, 32), _hex(span_id, 16), _hex(parent_id, 16)
    return Span(
        share(trace_id, trace_id),
        span_id,
        share(parent_id, parent_id),
        share(found.name, found.name),
        found.start_time_unix_nano,
        found.end_time_unix_nano,
        _KIND_OF.get(found.kind) or _kind(found.kind),
        _attributes(found.attributes, into),
        resource,
        scope,
        tuple([_link(link, into) for link in found.links]) if found.links else (),
        tuple([_event(event, into) for event in found.events]) if found.events else (),
        _STATUS_OF.get(found.status.code) or "unset",
        found.status.message,
    )


def _attributes(pairs: list[_KeyValue], into: Collected) -> dict[str, Any]:
    """A plain loop, without calls for the usual types: half of the time of reading goes by here."""
    share = into.share
    found: dict[str, Any] = {}
    for pair in pairs:
        key, value = pair.key, pair.value
        text = value.string_value
        if text is not None:
            found[share(key, key)] = share(text, text)
        elif (number := value.double_value) is not None:
            found[share(key, key)] = number
        elif (integer := value.int_value) is not None:
            found[share(key, key)] = integer
        else:
            found[share(key, key)] = _other_value(value)
    return found


def _other_value(value: _AnyValue) -> Any:
    if value.bool_value is not None:
        return value.bool_value
    if value.array_value is not None:
        return [_untyped(item) for item in value.array_value.get("values") or ()]
    if value.kvlist_value is not None:
        return {p.get("key", ""): _untyped(p.get("value")) for p in value.kvlist_value.get("values") or ()}
    return value.bytes_value


def _untyped(value: Any) -> Any:
    """What stands in a list or a map; odd shapes become None."""
    try:
        return _other_or_plain(msgspec.convert(value, _AnyValue, strict=False))
    except (msgspec.MsgspecError, ValueError, RecursionError, AttributeError, TypeError):
        return None


def _other_or_plain(value: _AnyValue) -> Any:
    for plain in (value.string_value, value.double_value, value.int_value):
        if plain is not None:
            return plain
    return _other_value(value)


def _link(found: _Link, into: Collected) -> Link:
    trace_id, span_id = _hex(found.trace_id, 32), _hex(found.span_id, 16)
    return Link(into.share(trace_id, trace_id), into.share(span_id, span_id), _attributes(found.attributes, into))


def _event(found: _Event, into: Collected) -> Event:
    return Event(into.share(found.name, found.name), found.time_unix_nano, _attributes(found.attributes, into))


def _kind(kind: int | str) -> str:
    return kind.removeprefix("SPAN_KIND_").lower() if isinstance(kind, str) and kind else "internal"


def _hex(identity: str, digits: int) -> str:
    """OTLP says hex; protobuf's own JSON printer writes base64; Jaeger leaves leading zeros out."""
    if len(identity) == digits or not identity:
        return identity
    if len(identity) == (digits // 2 + 2) // 3 * 4:
        try:
            return base64.b64decode(identity, validate=True).hex()
        except binascii.Error:
            pass
    return identity.zfill(digits)
