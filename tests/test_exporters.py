"""Whatever the exporter's other end does: a thousand tasks have the same results in the same time, and one line is logged."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from distributed.utils_test import gen_cluster
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._shared_internal import DuplicateFilter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_worker.instrumentor import DaskInstrumentor
from otel_worker.quiet import EVERY, FAILURES, LOGGERS, Quiet
from tests import collectors
from tests.live import assert_dask_is_its_own_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed import Client, Scheduler, Worker

TASKS = 1000
NOISE = 1.5  # times: what the event loop's thread computes differs by so much between two runs
BUSY = 4.0  # times: a machine that does other things too may make a run last so much longer
ENDS_WITHIN = 8.0  # seconds that a provider's shutdown is waited for
FAILS_AFTER = 0.5  # seconds that an exporter tries: it fails several times in each of these tests


def double(x: int) -> int:
    return 2 * x


class Took(NamedTuple):
    """Seconds for the thousand tasks: of CPU, in the one thread of scheduler, workers and client, and in all."""

    cpu: float
    wall: float


def thousand_tasks() -> tuple[list[int], Took]:
    results: list[int] = []
    took: list[Took] = []

    # Threads of exporters, and of a Collector that is served here, come and go as they like.
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2, clean_kwargs={"threads": False})
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await c.submit(double, 0)
        wall, cpu = time.perf_counter(), time.thread_time()
        results.extend(await c.gather(c.map(double, range(TASKS))))
        took.append(Took(time.thread_time() - cpu, time.perf_counter() - wall))

    scenario()
    return results, took[0]


def exporters(protocol: str, endpoint: str) -> tuple[Any, Any]:
    options: dict[str, Any] = {"timeout": FAILS_AFTER}
    if protocol == "http":
        return HttpSpans(f"{endpoint}/v1/traces", **options), HttpMetrics(f"{endpoint}/v1/metrics", **options)
    made: Any = tuple(kind(endpoint=endpoint, insecure=True, **options) for kind in (GrpcSpans, GrpcMetrics))
    for exporter in made if endpoint.startswith("dns:") else ():
        exporter._endpoint = endpoint  # its constructor keeps no more of a URL than host and port
        exporter._channel.close()
        exporter._initialize_channel_and_stub()
    return made[0], made[1]


@contextmanager
def switched_on(protocol: str, endpoint: str) -> Iterator[DaskInstrumentor]:
    """Us, with real exporters that send every 50 ms; their shutdown may hang, and is not waited for without end."""
    spans, metrics = exporters(protocol, endpoint)
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(spans, schedule_delay_millis=50))
    reader = PeriodicExportingMetricReader(metrics, export_interval_millis=100)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    instrumentor = DaskInstrumentor()
    # Every flush of a worker's close is short here: test_endings.py tells how long it may be.
    settings: dict[str, Any] = {"flush_timeout": 0.1}
    instrumentor.instrument(tracer_provider=tracers, meter_provider=meters, **settings)
    try:
        yield instrumentor
        runtime = instrumentor.runtime
        assert runtime is not None
        assert runtime.guard.failures == []
    finally:
        instrumentor.uninstrument()
        ends = [threading.Thread(target=provider.shutdown, daemon=True) for provider in (tracers, meters)]
        for end in ends:
            end.start()
        for end in ends:
            end.join(ENDS_WITHIN)  # what they say while they end is not the next test's
    assert_dask_is_its_own_again()


@pytest.fixture(scope="module")
def usual() -> Took:
    """What it takes with a Collector that is well."""
    with collectors.served_by_grpc(lambda _: None) as endpoint, switched_on("grpc", endpoint):
        results, took = thousand_tasks()
    assert results == [2 * x for x in range(TASKS)]
    return took


@pytest.fixture(autouse=True)
def _nothing_was_logged_before() -> None:
    """A filter of the SDK's own holds back what was logged last, for 20 s: the test before this one."""
    for held in (f for name in LOGGERS for f in logging.getLogger(name).filters):
        if isinstance(held, DuplicateFilter):
            vars(held).pop("last_log", None)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("opentelemetry")]


CASES = [
    ("grpc", collectors.closed),
    ("grpc", collectors.mute),
    ("grpc", collectors.silent),
    ("grpc", collectors.exhausted),
    ("grpc", collectors.slow_grpc),
    ("grpc", collectors.unresolved_grpc),
    ("http", collectors.closed),
    ("http", collectors.silent),
    ("http", collectors.unavailable),
    ("http", collectors.slow_http),
    ("http", collectors.unresolved_http),
]


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "collector"), CASES, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_a_thousand_tasks(usual: Took, caplog: pytest.LogCaptureFixture, protocol: str, collector: Any):
    with collector() as endpoint, switched_on(protocol, endpoint):
        results, took = thousand_tasks()
        deadline = time.monotonic() + 10
        while not failures(caplog) and time.monotonic() < deadline and not collector.__name__.startswith("slow"):
            time.sleep(0.05)
        time.sleep(0.7)  # others fail meanwhile
        told = failures(caplog)
    print(f"{protocol} {collector.__name__}: {took}, usually {usual}; {told}")
    assert results == [2 * x for x in range(TASKS)]
    assert took.cpu < NOISE * usual.cpu + 0.1
    assert took.wall < BUSY * usual.wall + 1
    if not collector.__name__.startswith("unresolved_http"):  # it hangs: nothing has failed so far
        assert len(told) == (0 if collector.__name__.startswith("slow") and not told else 1), told
    assert all("tasks are not affected" in line for line in told)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_collector_that_dies_and_comes_back(caplog: pytest.LogCaptureFixture, protocol: str):
    """What is recorded after it came back arrives, with nothing done about it."""
    arrived: list[float] = []

    def serve(port: int) -> Any:
        if protocol == "grpc":
            return collectors.served_by_grpc(lambda _: arrived.append(time.monotonic()), port)
        return collectors.served_by_http(lambda: arrived.append(time.monotonic()) or 200, port)  # type: ignore[func-returns-value]

    with serve(0) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        switch = switched_on(protocol, endpoint)
        switch.__enter__()
        assert thousand_tasks()[0] == [2 * x for x in range(TASKS)]
        assert arrived
    try:
        assert thousand_tasks()[0] == [2 * x for x in range(TASKS)]
        eventually(lambda: bool(failures(caplog)))
        with serve(port):
            arrived.clear()
            assert thousand_tasks()[0] == [2 * x for x in range(TASKS)]
            eventually(lambda: bool(arrived))
        told = failures(caplog)
    finally:
        switch.__exit__(None, None, None)
    assert len(told) == 1


def eventually(true: Callable[[], bool], within: float = 15.0) -> None:
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- one line a minute -------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The clock of a filter that is installed."""
    held = Clock()
    quiet = Quiet(held)
    quiet.install()
    quiet.install()
    yield held
    quiet.undo()
    assert not any(isinstance(f, Quiet) for name in LOGGERS for f in logging.getLogger(name).filters)


def test_the_first_is_logged_and_then_one_a_minute_with_a_count(clock: Clock, caplog: pytest.LogCaptureFixture):
    one, other = (logging.getLogger(name) for name in (LOGGERS[3], LOGGERS[4]))
    for i in range(100):
        one.error("Failed to export %s to %s", "traces", "x:1")
        other.warning("Transient error %s", i)
    clock.at = EVERY
    other.error("Failed to export %s to %s", "traces", "x:1")
    clock.at = 2 * EVERY
    other.exception("Exception while exporting metrics")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "Failed to export traces to x:1 (otel_worker: tasks are not affected; more of this is logged once a minute)",
        "Failed to export traces to x:1 (otel_worker: tasks are not affected; 199 more were not logged)",
        "Exception while exporting metrics (otel_worker: tasks are not affected; more of this is logged once a minute)",
    ]


@pytest.mark.usefixtures("clock")
def test_what_is_no_failed_export_is_logged_as_ever(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger(LOGGERS[1])
    for _ in range(3):
        logger.warning("Invalid type %s for attribute", "bytes")
        logger.warning(ValueError("no text"))
    assert len(caplog.records) == 6
    assert FAILURES


def test_it_is_there_while_workers_are_observed_and_not_before():
    instrumentor = DaskInstrumentor()
    loggers = [logging.getLogger(name) for name in LOGGERS]

    def installed() -> set[bool]:
        return {any(isinstance(f, Quiet) for f in logger.filters) for logger in loggers}

    seen = []

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
    async def scenario(c: Client, s: Scheduler, a: Worker):
        seen.append(installed())

    instrumentor.instrument(tracer_provider=TracerProvider(shutdown_on_exit=False))
    try:
        assert installed() == {False}
        scenario()
    finally:
        instrumentor.uninstrument()
    assert seen == [{True}]
    assert installed() == {False}
