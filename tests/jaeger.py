"""What a Jaeger has of a trace, as its query API tells it: spans as frozen data, and the patience to wait for them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import requests

T = TypeVar("T")

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUSES = ("UNSET", "OK", "ERROR")


@dataclass(frozen=True)
class Span:
    trace_id: str
    span_id: str
    parent_id: str  # "" for a root
    name: str
    kind: str
    start: int  # ns
    end: int  # ns
    status: str
    status_message: str
    service: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: tuple[tuple[str, str], ...]  # (trace id, span id)


def read_spans(otlp: dict[str, Any]) -> list[Span]:
    """From OTLP JSON, in order of their start."""
    spans = [
        read_span(raw, attributes(block["resource"]))
        for block in otlp["resourceSpans"]
        for scope in block["scopeSpans"]
        for raw in scope["spans"]
    ]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def read_span(raw: dict[str, Any], resource: dict[str, Any]) -> Span:
    status = raw.get("status", {})
    return Span(
        trace_id=raw["traceId"],
        span_id=raw["spanId"],
        parent_id=raw.get("parentSpanId", ""),
        name=raw["name"],
        kind=KINDS[raw.get("kind", 0)],
        start=int(raw["startTimeUnixNano"]),
        end=int(raw["endTimeUnixNano"]),
        status=STATUSES[status.get("code", 0)],
        status_message=status.get("message", ""),
        service=resource["service.name"],
        attributes=attributes(raw),
        resource=resource,
        links=tuple((link["traceId"], link["spanId"]) for link in raw.get("links", ())),
    )


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: plain(item["value"]) for item in holder.get("attributes", ())}


def plain(value: dict[str, Any]) -> Any:
    for kind, content in value.items():
        if kind == "intValue":
            return int(content)
        if kind == "arrayValue":
            return [plain(item) for item in content.get("values", ())]
        return content
    return None


def by_trace(spans: list[Span]) -> dict[str, list[Span]]:
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    return traces


@dataclass(frozen=True)
class Jaeger:
    """Traces are read as they were stored: without Jaeger's own adjustments of clocks and duplicates."""

    query_url: str
    otlp_grpc: str  # host:port, no TLS
    otlp_http: str  # URL without /v1/traces

    def services(self) -> list[str]:
        names: list[str] = self._get("/api/v3/services").get("services", [])
        return sorted(names)

    def trace(self, trace_id: str, until: Callable[[list[Span]], object] = bool, *, within: float = 20.0) -> list[Span]:
        """Asks until the trace's spans satisfy `until` (by default: there are any)."""
        return eventually(lambda: read_spans(self.trace_otlp(trace_id)), until, within)

    def traces(
        self, service: str, until: Callable[[dict[str, list[Span]]], object] = bool, *, within: float = 20.0
    ) -> dict[str, list[Span]]:
        """By trace id, the oldest first: those in which the service has a span. Asks until they satisfy `until`."""
        return eventually(lambda: by_trace(read_spans(self.traces_otlp(service))), until, within)

    def trace_otlp(self, trace_id: str) -> dict[str, Any]:
        """The OTLP JSON itself, without spans if Jaeger has no such trace."""
        return self._spans(f"/api/v3/traces/{trace_id}", raw_traces="true")

    def traces_otlp(self, service: str, *, at_most: int = 10_000) -> dict[str, Any]:
        return self._spans(
            "/api/v3/traces",
            **{
                "query.service_name": service,
                "query.start_time_min": "2000-01-01T00:00:00Z",
                "query.start_time_max": "2100-01-01T00:00:00Z",
                "query.num_traces": str(at_most),
                "query.raw_traces": "true",
            },
        )

    def _spans(self, path: str, **query: str) -> dict[str, Any]:
        spans: dict[str, Any] = self._get(path, **query).get("result", {"resourceSpans": []})
        return spans

    def _get(self, path: str, **query: str) -> dict[str, Any]:
        answer = requests.get(self.query_url + path, params=query, timeout=30)
        if answer.status_code == requests.codes.not_found:
            return {}
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def eventually(ask: Callable[[], T], until: Callable[[T], object], within: float) -> T:
    """What `ask` says once `until` likes it; fails with the last answer."""
    deadline = time.monotonic() + within
    while not until(answer := ask()):
        assert time.monotonic() < deadline, f"not so within {within} s, last seen: {answer}"
        time.sleep(0.05)
    return answer
