"""Beside other instrumentations: one span an operation, theirs below ours, and log records that name spans that exist."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import requests
from distributed import Client, Scheduler, Worker, wait
from distributed.utils_test import gen_cluster
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from tornado.httpclient import AsyncHTTPClient

from tests.live import Live

QUIET = {"distributed.scheduler.active-memory-manager.start": False, "distributed.scheduler.work-stealing": False}
cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], config=QUIET)

OTHERS = {
    "asyncio": "AsyncioInstrumentor",
    "logging": "LoggingInstrumentor",
    "requests": "RequestsInstrumentor",
    "threading": "ThreadingInstrumentor",
    "tornado": "TornadoInstrumentor",
}
MODULE = "opentelemetry.instrumentation."
MISSING = [name for name in OTHERS if find_spec(MODULE + name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"needs opentelemetry-instrumentation-{', -'.join(MISSING)}"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:opentelemetry"),
]

log = logging.getLogger("tests.beside")


@pytest.fixture
def others(live: Live) -> Iterator[None]:
    """All of them, on the same provider as ours."""
    with ExitStack() as stack:
        for name, kind in OTHERS.items():
            other = getattr(import_module(MODULE + name), kind)()
            other.instrument(
                tracer_provider=live.switch.provider, set_logging_format=True, enable_log_auto_instrumentation=False
            )
            stack.callback(other.uninstrument)
        yield


@pytest.fixture
def site() -> Iterator[str]:
    """A web server."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def own(name: str) -> None:
    with trace.get_tracer("user", tracer_provider=PROVIDERS[-1]).start_as_current_span(name):
        pass


PROVIDERS: list[Any] = []  # of the test that runs


def visit(url: str) -> int:
    """With requests, in a thread of its own, in a pool, and in asyncio's."""
    size = len(requests.get(url, timeout=10).content)
    thread = threading.Thread(target=own, args=("in a thread",))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(own, "in a pool").result()
    asyncio.run(asyncio.to_thread(own, "in asyncio"))
    return size


async def visit_async(url: str) -> int:
    return len((await AsyncHTTPClient().fetch(url)).body)


def use(*sizes: int) -> int:
    return sum(sizes)


@pytest.fixture
def provider(live: Live) -> Iterator[None]:
    PROVIDERS.append(live.switch.provider)
    yield
    PROVIDERS.pop()


@pytest.mark.usefixtures("others", "provider")
def test_theirs_stand_below_ours(live: Live, site: str):
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, config=QUIET)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(visit, site, key="visit-1", workers=[a.address])
        y = c.submit(visit_async, site, key="visit_async-1", workers=[b.address])
        assert await c.submit(use, x, y, key="use-1", workers=[b.address]) == 10

    scenario()
    live.check()
    assert live.tree("compute visit") == [
        "compute visit",
        "  submit",
        "  task visit",
        "    execute",
        "      run",
        "        GET",
        "        in a thread",
        "        in a pool",
        "        in asyncio",
    ]
    assert live.tree("compute visit_async")[-3:] == ["    execute", "      run", "        GET"]
    assert live.tree("compute use") == [
        "compute use",
        "  submit",
        "  task use",
        "    waiting",
        "      fetch use",
        "        fetch.queued",
        "        connect",
        "          connect.pool",
        "          connect.dial",
        "          connect.handshake",
        "        request",
        "          get_data",
        "            get_data.serialize",
        "            get_data.send",
        "        fetch.deserialize",
        "    execute",
        "      run",
    ]
    theirs = [span for span in live.spans() if span.scope != "otel_worker"]
    ours = {span.ref: span for span in live.spans() if span.scope == "otel_worker"}
    assert sorted(span.name for span in theirs) == ["GET", "GET", "in a pool", "in a thread", "in asyncio"]
    assert {ours[span.parent_ref].name for span in theirs} == {"run"}


# --- log records -----------------------------------------------------------------------------------------------------


class Records(logging.Handler):
    """What was logged, and the same through OpenTelemetry's own log records."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[logging.LogRecord] = []
        self.exporter = InMemoryLogRecordExporter()
        self.provider = LoggerProvider(shutdown_on_exit=False)
        self.provider.add_log_record_processor(SimpleLogRecordProcessor(self.exporter))
        handlers = import_module(f"{MODULE}logging.handler")
        self.otel = handlers.LoggingHandler(logger_provider=self.provider)

    def emit(self, record: logging.LogRecord) -> None:
        self.held.append(record)
        self.otel.emit(record)

    def named(self) -> dict[str, set[tuple[str, str]]]:
        """By message, the (trace, span) ids that its records carry."""
        found: dict[str, set[tuple[str, str]]] = {}
        for record in self.held:
            ids = (vars(record)["otelTraceID"], vars(record)["otelSpanID"])
            found.setdefault(record.getMessage(), set()).add(ids)
        for sent in self.exporter.get_finished_logs():
            said = sent.log_record
            assert said.trace_id is not None
            assert said.span_id is not None
            found[str(said.body)].add((format(said.trace_id, "032x"), format(said.span_id, "016x")))
        return found


@pytest.fixture
def records() -> Iterator[Records]:
    held = Records()
    log.addHandler(held)
    log.setLevel(logging.INFO)
    yield held
    log.removeHandler(held)


LATER: list[threading.Thread] = []  # log when their tasks are over
OVER = threading.Event()


def say(number: int) -> int:
    log.info("said by %s", number)
    return number


def say_later(number: int) -> None:
    def later() -> None:
        OVER.wait()
        log.info("later by %s", number)

    LATER.append(threading.Thread(target=later))
    LATER[-1].start()


@pytest.mark.usefixtures("others")
def test_a_log_record_names_the_run_of_its_task(live: Live, records: Records):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        await wait(c.map(say, range(3), key=[f"say-{i}" for i in range(3)]))

    scenario()
    runs = {span.parent_id: span for span in live.spans() if span.name == "run"}
    tasks = {span.span_id: span.attributes["dask.task.key"] for span in live.spans() if span.operation == "task"}
    executes = {s.span_id: tasks[s.parent_id] for s in live.spans() if s.name == "execute"}
    expected = {
        f"said by {executes[parent].removeprefix('say-')}": {(run.trace_id, run.span_id)}
        for parent, run in runs.items()
    }
    assert records.named() == expected


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("burst", [4, 8, 1000], ids=["out of budget", "partly", "in budget"])
def test_no_log_record_names_a_span_that_was_not_exported(live: Live, records: Records, burst: int):
    """Out of budget a record names the nearest span above it that was: `compute`, in the same trace."""
    live.again(span_burst=burst, span_budget=0.001)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        OVER.clear()
        LATER.clear()
        said = c.map(say, range(9), key=[f"say-{i}" for i in range(9)])
        await wait(said)
        await wait(c.map(say_later, range(9), key=[f"say_later-{i}" for i in range(9)]))
        OVER.set()

    logged = {f"said by {i}" for i in range(9)} | {f"later by {i}" for i in range(9)}
    scenario()
    for thread in LATER:
        thread.join()
    exported = {(span.trace_id, span.span_id): span for span in live.spans()}
    found = records.named()
    assert set(found) == logged
    nothing = ("0", "0")
    assert [
        ids for message in found for ids in found[message] - {nothing, ("0" * 32, "0" * 16)} if ids not in exported
    ] == []
    said = [exported[ids].operation for i in range(9) for ids in found[f"said by {i}"]]
    assert set(said) == {4: {"compute", "run"}, 8: {"compute", "run"}, 1000: {"run"}}[burst]
    live.check()
