"""Whatever the budget and the sampler: no exported span names a parent, or has a link, that was not exported.

Beside spans of the user's own, graphs that tasks submit, and the requests and logging instrumentations: their spans, log
records and outgoing headers name ours.
"""

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
import requests
from distributed import Client, Scheduler, Worker, worker_client
from distributed.utils_test import gen_cluster
from opentelemetry import trace
from opentelemetry.instrumentation.logging import LoggingInstrumentor
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from otel_worker import names
from otel_worker.checks import check
from tests.live import Live

TASKS = 20
cluster = gen_cluster(
    client=True, nthreads=[("127.0.0.1", 2), ("127.0.0.1", 2)], clean_kwargs={"threads": False}, timeout=60
)
logger = logging.getLogger("a.users.own")


class Server(BaseHTTPRequestHandler):
    headers_seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.headers_seen.append(self.headers.get("traceparent", ""))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == logger.name:
            self.ids.append((record.otelTraceID, record.otelSpanID))  # type: ignore[attr-defined]


@pytest.fixture
def url() -> Iterator[str]:
    Server.headers_seen = []
    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def records() -> Iterator[Records]:
    handler = Records()
    root = logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


def own_span(i: int) -> int:
    with trace.get_tracer("user").start_as_current_span("users own"):
        logger.warning("within a span of mine")
        return i


def asks(i: int, url: str) -> int:
    logger.warning("before I ask")
    return requests.get(url, timeout=30).status_code + i


def submits(i: int) -> int:
    """A graph from inside a task, and a span around it."""
    with trace.get_tracer("user").start_as_current_span("submits"), worker_client() as client:
        return int(client.submit(own_span, i, key=f"nested-{i}").result())


async def work(c: Client, url: str) -> None:
    first = c.map(own_span, range(TASKS), key=[f"own-{i}" for i in range(TASKS)])
    second = c.map(asks, first, url=url, key=[f"asks-{i}" for i in range(TASKS)])
    third = c.map(submits, range(TASKS // 4), key=[f"submits-{i}" for i in range(TASKS // 4)])
    total = c.submit(sum, [*second, *third], key="total-1")
    assert await total == sum(range(TASKS)) + 200 * TASKS + sum(range(TASKS // 4))


def fields(traceparent: str) -> list[str]:
    return traceparent.split("-")


def switched_on(live: Live, sampler: Sampler, **settings: float) -> None:
    live.switch.off()
    live.switch.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    live.switch.provider.add_span_processor(SimpleSpanProcessor(live.switch.exported))
    live.switch.on(**settings)


ON, RATIO, OFF = ALWAYS_ON, ParentBased(TraceIdRatioBased(0.5)), ALWAYS_OFF


@pytest.mark.parametrize(
    ("sampler", "budget"), [(ON, 10**6), (ON, 30), (ON, 0), (RATIO, 10**6), (RATIO, 30), (OFF, 30)]
)
def test_no_parent_or_link_is_missing(
    live: Live, url: str, records: Records, monkeypatch: pytest.MonkeyPatch, sampler: Sampler, budget: int
):
    switched_on(live, sampler, span_budget=0, span_burst=budget, min_phase=0, coalesce_interval=0.2)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", live.switch.provider)  # the others' spans go where ours go
    LoggingInstrumentor().instrument(set_logging_format=True)
    RequestsInstrumentor().instrument(tracer_provider=live.switch.provider)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await work(c, url)

    try:
        scenario()
    finally:
        RequestsInstrumentor().uninstrument()
        LoggingInstrumentor().uninstrument()

    spans = live.spans()
    assert [sentence for sentence in check(spans) if "which is not there" in sentence] == []
    assert len(Server.headers_seen) == TASKS
    assert len(records.ids) == 2 * TASKS + TASKS // 4
    if sampler is ALWAYS_OFF:
        assert spans == []
        return
    exported = {span.span_id for span in spans}
    sampled = [span for _, _, span, flags in map(fields, Server.headers_seen) if int(flags, 16) & 1]
    assert set(sampled) <= exported
    if sampler is ALWAYS_ON:
        assert len(sampled) == TASKS
        assert {span for _, span in records.ids} - {"0"} <= exported
        assert sum(s.name == "users own" for s in spans) == TASKS + TASKS // 4  # the user's spans need no token of ours
        if budget:
            assert any(s.operation == names.TASK for s in spans)
        assert budget == 10**6 or any(s.operation == names.TASKS for s in spans)
