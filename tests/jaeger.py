"""What a Jaeger has of a trace, read as the report reads it, and the patience to wait for it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import requests

from otel_worker.traces import Span, read

T = TypeVar("T")

EVER = 10 * 365 * 86_400.0  # seconds: tests make spans up at any time


@dataclass(frozen=True)
class Jaeger:
    """Its spans come in order of their start, as they were stored: without Jaeger's adjustments of clocks."""

    query_url: str
    otlp_grpc: str  # host:port, no TLS
    otlp_http: str  # URL without /v1/traces

    def trace(self, trace_id: str, until: Callable[[list[Span]], object] = bool, *, within: float = 20.0) -> list[Span]:
        """Asks until the trace's spans satisfy `until` (by default: there are any)."""
        return eventually(lambda: self.spans(trace_id=trace_id), until, within)

    def traces(
        self, service: str, until: Callable[[dict[str, list[Span]]], object] = bool, *, within: float = 20.0
    ) -> dict[str, list[Span]]:
        """By trace id, at most 1,000: those in which the service has a span. Asks until they satisfy `until`."""
        return eventually(lambda: by_trace(self.spans(service=service)), until, within)

    def spans(self, *, service: str = "", trace_id: str = "") -> list[Span]:
        """What it has now; parents may be still on their way, so the reader's problems say nothing yet."""
        found = read(self.query_url, service=service, trace_id=trace_id, since=EVER).spans
        return sorted(found, key=lambda span: (span.start, -span.end))

    def get(self, path: str, **query: str) -> Any:
        """The JSON of any of its APIs, for a test that needs to see what its own pages see."""
        answer = requests.get(self.query_url + path, params=query, timeout=30)
        answer.raise_for_status()
        return answer.json()


def by_trace(spans: list[Span]) -> dict[str, list[Span]]:
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    return traces


def eventually(ask: Callable[[], T], until: Callable[[T], object], within: float) -> T:
    """What `ask` says once `until` likes it; fails with the last answer."""
    deadline = time.monotonic() + within
    while not until(answer := ask()):
        assert time.monotonic() < deadline, f"not so within {within} s, last seen: {str(answer)[:3000]}"
        time.sleep(0.05)
    return answer
