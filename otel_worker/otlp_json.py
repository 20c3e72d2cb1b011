"""OTLP protobuf messages as OTLP/JSON: hex ids, camelCase, 64-bit integers as strings, enums as numbers."""

import base64
from math import isfinite
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

Json = dict[str, Any]

_ID_FIELDS = ("traceId", "spanId", "parentSpanId")
_CAMEL = {"string_value": "stringValue", "bool_value": "boolValue", "double_value": "doubleValue"}


def generic_to_json(message: Message) -> Json:
    """Any OTLP message; but spans go through `traces_to_json`, in half the time."""
    found: Json = MessageToDict(message, use_integers_for_enums=True)
    _ids_to_hex(found)
    return found


def traces_to_json(request: ExportTraceServiceRequest) -> Json:
    return {"resourceSpans": [_resource_spans(r) for r in request.resource_spans]} if request.resource_spans else {}


def _ids_to_hex(value: Any) -> None:
    """Turn ids, which protobuf's JSON writes in base64, into OTLP's hex, in place."""
    if isinstance(value, list):
        for item in value:
            _ids_to_hex(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _ID_FIELDS and isinstance(item, str):
                value[name] = base64.b64decode(item).hex()
            else:
                _ids_to_hex(item)


def _resource_spans(message: ResourceSpans) -> Json:
    found: Json = {}
    if message.HasField("resource"):
        found["resource"] = _resource(message.resource)
    if message.scope_spans:
        found["scopeSpans"] = [_scope_spans(s) for s in message.scope_spans]
    _put(found, "schemaUrl", message.schema_url)
    return found


def _resource(message: Resource) -> Json:
    if getattr(message, "entity_refs", None):  # younger than our oldest opentelemetry-proto
        return generic_to_json(message)
    return _with_attributes({}, message.attributes, message.dropped_attributes_count)


def _scope_spans(message: ScopeSpans) -> Json:
    found: Json = {}
    if message.HasField("scope"):
        found["scope"] = _scope(message.scope)
    if message.spans:
        found["spans"] = [_span(s) for s in message.spans]
    _put(found, "schemaUrl", message.schema_url)
    return found


def _scope(message: InstrumentationScope) -> Json:
    found: Json = {}
    _put(found, "name", message.name)
    _put(found, "version", message.version)
    return _with_attributes(found, message.attributes, message.dropped_attributes_count)


def _span(message: Span) -> Json:
    found: Json = {}
    _put(found, "traceId", message.trace_id.hex())
    _put(found, "spanId", message.span_id.hex())
    _put(found, "traceState", message.trace_state)
    _put(found, "parentSpanId", message.parent_span_id.hex())
    _put(found, "flags", message.flags)
    _put(found, "name", message.name)
    _put(found, "kind", int(message.kind))
    _put_nanos(found, "startTimeUnixNano", message.start_time_unix_nano)
    _put_nanos(found, "endTimeUnixNano", message.end_time_unix_nano)
    _with_attributes(found, message.attributes, message.dropped_attributes_count)
    if message.events:
        found["events"] = [_event(e) for e in message.events]
    _put(found, "droppedEventsCount", message.dropped_events_count)
    if message.links:
        found["links"] = [_link(link) for link in message.links]
    _put(found, "droppedLinksCount", message.dropped_links_count)
    if message.HasField("status"):
        found["status"] = _status(message.status)
    return found


def _event(message: Span.Event) -> Json:
    found: Json = {}
    _put_nanos(found, "timeUnixNano", message.time_unix_nano)
    _put(found, "name", message.name)
    return _with_attributes(found, message.attributes, message.dropped_attributes_count)


def _link(message: Span.Link) -> Json:
    found: Json = {}
    _put(found, "traceId", message.trace_id.hex())
    _put(found, "spanId", message.span_id.hex())
    _put(found, "traceState", message.trace_state)
    _put(found, "flags", message.flags)
    return _with_attributes(found, message.attributes, message.dropped_attributes_count)


def _status(message: Status) -> Json:
    found: Json = {}
    _put(found, "message", message.message)
    _put(found, "code", int(message.code))
    return found


def _with_attributes(found: Json, attributes: Any, dropped: int) -> Json:
    if attributes:
        found["attributes"] = [_attribute(a) for a in attributes]
    _put(found, "droppedAttributesCount", dropped)
    return found


def _attribute(message: KeyValue) -> Json:
    found: Json = {}
    _put(found, "key", message.key)
    if message.HasField("value"):
        found["value"] = _value(message.value)
    return found


def _value(message: AnyValue) -> Json:
    which = message.WhichOneof("value")
    if which is None:
        return {}
    if which == "int_value":
        return {"intValue": str(message.int_value)}
    if which in _CAMEL and not (which == "double_value" and not isfinite(message.double_value)):
        return {_CAMEL[which]: getattr(message, which)}
    return _nested_value(which, message)


def _nested_value(which: str, message: AnyValue) -> Json:
    if which == "array_value":
        return {"arrayValue": {"values": [_value(v) for v in message.array_value.values]}}
    if which == "kvlist_value":
        return {"kvlistValue": {"values": [_attribute(a) for a in message.kvlist_value.values]}}
    return generic_to_json(message)


def _put(found: Json, name: str, value: Any) -> None:
    """Protobuf's default values are left out, as the Collector does."""
    if value:
        found[name] = value


def _put_nanos(found: Json, name: str, nanos: int) -> None:
    if nanos:
        found[name] = str(nanos)
