"""Spans as the OTLP JSON lines that they would come from."""

from typing import Any

import msgspec

from otel_worker.traces import Span

KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
STATUS = {"unset": 0, "ok": 1, "error": 2}


def otlp_lines(spans: list[Span]) -> bytes:
    return b"".join(msgspec.json.encode({"resourceSpans": [_resource_spans(span)]}) + b"\n" for span in spans)


def _resource_spans(span: Span) -> dict[str, Any]:
    scoped = {"scope": {"name": span.scope}, "spans": [_span(span)]}
    return {"resource": {"attributes": _attributes(span.resource.attributes)}, "scopeSpans": [scoped]}


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
        "links": [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links],
        "status": {"code": STATUS[span.status]},
    }


def _attributes(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
