"""collector/production.yaml: who may send, what the sample keeps, several Collectors, and restarts in the middle of a job."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import requests
from distributed import Client, Future
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags

from tests.compose import cannot
from tests.jaeger import Jaeger, eventually
from tests.processes import Programs
from tests.services import COLLECTOR_CONFIG, JAEGER_CONFIG, Process, Services, free_endpoints

pytestmark = [pytest.mark.services, pytest.mark.slow]

CONFIG = COLLECTOR_CONFIG.parent / "production.yaml"
BADGER = JAEGER_CONFIG.parent / "badger.yaml"
TOKEN = "a-token-of-tests"
ENDPOINTS = ("GRPC_ENDPOINT", "SAMPLER_ENDPOINT", "PROMETHEUS_ENDPOINT", "HEALTH_ENDPOINT", "METRICS_PORT")
SECOND = 1_000_000_000


@dataclass
class Site:
    """A certificate for this machine, a token, a Jaeger that speaks TLS and keeps its traces in files, and Collectors."""

    services: Services
    directory: Path
    jaeger: Jaeger
    jaeger_process: Process
    collectors: list[Process] = field(default_factory=list)

    def collector(self, **environment: str) -> Process:
        """Started by the caller: it is told all of its endpoints first, so that two can know each other."""
        queue = self.directory / f"queue-{len(self.collectors)}"
        queue.mkdir()
        process = Process(
            self.services.collector_binary,
            CONFIG,
            self.directory / f"collector-{len(self.collectors)}.log",
            (),
            environment={
                **files(self.directory),
                "OTELCOL_QUEUE_DIRECTORY": str(queue),
                "JAEGER_ENDPOINT": self.jaeger.otlp_grpc,
                "DASK_DECISION_WAIT": "1s",
                "DASK_KEEP_PERCENT": "0",
                **environment,
            },
        )
        process.endpoints = dict(
            zip((f"OTELCOL_{name}" for name in ENDPOINTS), free_endpoints(len(ENDPOINTS)), strict=True)
        )
        own = process.endpoints["OTELCOL_SAMPLER_ENDPOINT"]
        process.environment = {"OTELCOL_SAMPLER_0": own, "OTELCOL_SAMPLER_1": own, **process.environment}
        self.collectors.append(process)
        self.services.processes.append(process)
        return process

    def running(self, **environment: str) -> Process:
        process = self.collector(**environment)
        process.start()
        return process

    def exporter(self, to: Process, token: str = TOKEN) -> OTLPSpanExporter:
        return OTLPSpanExporter(
            endpoint=to.endpoints["OTELCOL_GRPC_ENDPOINT"],
            credentials=grpc.ssl_channel_credentials((self.directory / "cert.pem").read_bytes()),
            headers={"authorization": f"Bearer {token}"},
        )


def files(directory: Path) -> dict[str, str]:
    names = {"CERT_FILE": "cert.pem", "CA_FILE": "cert.pem", "KEY_FILE": "key.pem", "TOKEN_FILE": "token"}
    return {f"OTELCOL_{name}": str(directory / file) for name, file in names.items()}


def certify(directory: Path) -> None:
    new = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    )
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    to = ("-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem"))
    try:
        subprocess.run((*new, *named, *to), check=True, capture_output=True)
    except FileNotFoundError:
        cannot("openssl is missing")
    (directory / "token").write_text(TOKEN)


@pytest.fixture
def site(services: Services, tmp_path: Path) -> Site:
    certify(tmp_path)
    (tmp_path / "badger").mkdir()
    tls = "yaml:receivers::otlp::protocols::grpc::tls"
    process = Process(
        services.jaeger_binary,
        BADGER,
        tmp_path / "jaeger.log",
        tuple(f"JAEGER_{name}_ENDPOINT" for name in ("OTLP_GRPC", "QUERY_HTTP", "QUERY_GRPC")),
        environment={"JAEGER_BADGER": str(tmp_path / "badger"), "PROMETHEUS_URL": "http://127.0.0.1:9"},
        overrides=(f"{tls}::cert_file: {tmp_path}/cert.pem", f"{tls}::key_file: {tmp_path}/key.pem"),
    )
    services.processes.append(process)
    process.start()
    otlp, query, _ = process.endpoints.values()
    return Site(services, tmp_path, Jaeger(f"http://{query}", otlp, ""), process)


@dataclass
class Sender:
    """A process of Dask, as far as a Collector can tell."""

    provider: TracerProvider = field(
        default_factory=lambda: TracerProvider(resource=Resource({"service.name": "sender"}), shutdown_on_exit=False)
    )

    @property
    def tracer(self) -> trace.Tracer:
        return self.provider.get_tracer("tests")

    def span(self, name: str, seconds: float = 0.1, *, of: str = "", failed: bool = False, **attributes: int) -> str:
        """Sent when this returns, if it is sent at once. `of`: a trace that it belongs to, by its id."""
        context = trace.set_span_in_context(trace.NonRecordingSpan(remote(of))) if of else None
        end = time.time_ns()
        begin = end - round(seconds * SECOND)
        named = {f"dask.tasks.{key}": value for key, value in attributes.items()}
        span = self.tracer.start_span(name, context, start_time=begin, attributes=named)
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(end)
        return trace.format_trace_id(span.get_span_context().trace_id)


def remote(trace_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), 0xABC, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@pytest.fixture
def senders(site: Site) -> Iterator["list[Sender]"]:
    made: list[Sender] = []
    yield made
    for sender in made:
        sender.provider.shutdown()


def sends_at_once(made: list[Sender], exporter: OTLPSpanExporter) -> Sender:
    sender = Sender()
    sender.provider.add_span_processor(SimpleSpanProcessor(exporter))
    made.append(sender)
    return sender


def names(site: Site, trace_id: str) -> list[str]:
    return sorted(span.name for span in site.jaeger.spans(trace_id=trace_id))


def arrive(site: Site, trace_id: str, *expected: str) -> None:
    eventually(lambda: names(site, trace_id), lambda found: found == sorted(expected), within=20)


@pytest.mark.parametrize("config", [CONFIG, BADGER], ids=["production", "badger"])
def test_configurations_are_valid(service_binaries: tuple[Path, Path], tmp_path: Path, config: Path) -> None:
    binary = service_binaries[0] if config is CONFIG else service_binaries[1]
    certify(tmp_path)
    environment = {**os.environ, **files(tmp_path), "OTELCOL_QUEUE_DIRECTORY": str(tmp_path), "JAEGER_ENDPOINT": "a:1"}
    command = [str(binary), "validate", "--config", str(config)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_only_who_has_the_token_may_send(site: Site, senders: list[Sender], caplog: pytest.LogCaptureFixture) -> None:
    collector = site.running()
    refused = sends_at_once(senders, site.exporter(collector, token="another")).span("run", failed=True)
    assert "UNAUTHENTICATED" in caplog.text
    plain = OTLPSpanExporter(endpoint=collector.endpoints["OTELCOL_GRPC_ENDPOINT"], insecure=True, timeout=1)
    without_tls = sends_at_once(senders, plain).span("run", failed=True)

    taken = sends_at_once(senders, site.exporter(collector)).span("run", failed=True)

    assert [span.name for span in site.jaeger.trace(taken)] == ["run"]
    assert names(site, refused) == names(site, without_tls) == []


def test_the_sample_keeps_what_is_slow_and_what_failed(site: Site, senders: list[Sender]) -> None:
    sender = sends_at_once(senders, site.exporter(site.running()))
    quick = sender.span("quick")
    slow = sender.span("slow", 6.0)
    sender.span("quick part", of=slow)
    failed = sender.span("failed", failed=True)
    sums = sender.span("tasks sum", count=7)

    arrive(site, slow, "quick part", "slow")
    arrive(site, failed, "failed")
    arrive(site, sums, "tasks sum")
    sender.span("later", of=slow)
    sender.span("failed later", of=quick, failed=True)
    arrive(site, slow, "later", "quick part", "slow")
    arrive(site, quick, "failed later")


def test_a_trace_is_decided_as_a_whole_whichever_collector_its_spans_come_to(site: Site, senders: list[Sender]) -> None:
    first, second = site.collector(), site.collector()
    for process in (first, second):
        for number, sampler in enumerate((first, second)):
            process.environment[f"OTELCOL_SAMPLER_{number}"] = sampler.endpoints["OTELCOL_SAMPLER_ENDPOINT"]
        process.start()
    here, there = (sends_at_once(senders, site.exporter(process)) for process in (first, second))

    traces = [here.span("quick half") for _ in range(20)]
    for trace_id in traces:
        there.span("failed half", of=trace_id, failed=True)

    assert {trace_id[-1] < "8" for trace_id in traces} == {True, False}
    for trace_id in traces:
        arrive(site, trace_id, "failed half", "quick half")
    assert accepted_as_sampler(first) > 0
    assert accepted_as_sampler(second) > 0


def accepted_as_sampler(process: Process) -> float:
    """Spans."""
    port = process.endpoints["OTELCOL_METRICS_PORT"].rpartition(":")[2]
    page = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text.splitlines()
    own = [line for line in page if line.startswith("otelcol_receiver_accepted_spans{") and "otlp/sampler" in line]
    return sum(float(line.rpartition(" ")[2]) for line in own)


def test_what_waits_for_a_sampler_survives_a_crash(site: Site, senders: list[Sender]) -> None:
    sampler = site.collector()
    at = sampler.endpoints["OTELCOL_SAMPLER_ENDPOINT"]
    front = site.running(OTELCOL_SAMPLER_0=at, OTELCOL_SAMPLER_1=at)
    sender = sends_at_once(senders, site.exporter(front))
    traces = [sender.span("failed", failed=True) for _ in range(20)]

    front.kill()
    sampler.start()
    front.start()

    for trace_id in traces:
        arrive(site, trace_id, "failed")


def test_restarts_in_the_middle_of_a_job_lose_nothing(site: Site) -> None:
    """The Collector is restarted, Jaeger is killed, the Collector is killed while it waits for Jaeger: all is there."""
    collector = site.running(DASK_DECISION_WAIT="200ms", DASK_KEEP_PERCENT="100")
    sender, job = Sender(), threading.Event()
    sender.provider.add_span_processor(BatchSpanProcessor(site.exporter(collector), schedule_delay_millis=100))
    sent: list[str] = []
    traces = ("7" * 32, "8" * 32)  # one of each sampler's share

    def work() -> None:
        while not job.wait(0.005):
            sent.append(f"task {len(sent)}")
            sender.span(sent[-1], of=traces[len(sent) % 2])

    worker = threading.Thread(target=work)
    worker.start()
    try:
        at_least(sent, 100)
        collector.stop()
        collector.start()
        at_least(sent, len(sent) + 100)
        site.jaeger_process.kill()
        at_least(sent, len(sent) + 100)
        in_the_queue_on_disk(sender, collector, seconds=1.0)
    finally:
        job.set()
        worker.join()
    sender.provider.force_flush()
    in_the_queue_on_disk(sender, collector, seconds=1.0)
    collector.kill()
    site.jaeger_process.start()
    collector.start()
    sender.provider.shutdown()

    def lost() -> set[str]:
        return set(sent) - {name for trace_id in traces for name in names(site, trace_id)}

    eventually(lost, lambda missing: not missing, within=60)


def test_restarts_in_the_middle_of_a_dask_job_lose_no_task(site: Site, programs: Programs) -> None:
    collector = site.running(DASK_DECISION_WAIT="200ms", DASK_KEEP_PERCENT="100")
    told = {
        "endpoint": f"https://{collector.endpoints['OTELCOL_GRPC_ENDPOINT']}",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(site.directory / "cert.pem"),
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    scheduler = programs.scheduler()
    workers = [programs.worker(scheduler, name, "--no-nanny", **told) for name in ("alice", "bob")]
    scheduler.has(workers=2)
    with Client(scheduler.address) as client:
        futures = client.map(time.sleep, [0.1] * 120, pure=False)

        done(futures, 30)
        collector.stop()
        collector.start()
        done(futures, 60)
        site.jaeger_process.kill()
        done(futures, 90)
        site.jaeger_process.start()

        client.gather(futures)
        ran = {future.key for future in futures}
    for worker in workers:
        worker.terminate()
        worker.ended()

    def lost() -> set[object]:
        seen = site.jaeger.spans(service="dask-worker")
        return ran - {span.attributes["dask.task.key"] for span in seen if span.name == "task sleep"}

    eventually(lost, lambda missing: not missing, within=60)


def done(futures: "list[Future]", count: int) -> None:
    eventually(lambda: sum(future.done() for future in futures), lambda now: now >= count, within=60)


def at_least(sent: list[str], count: int) -> None:
    eventually(lambda: len(sent), lambda now: now >= count, within=30)


def in_the_queue_on_disk(sender: Sender, collector: Process, seconds: float) -> None:
    """Past the sampler's wait, after which nothing is in the Collector's memory alone."""
    sender.provider.force_flush()
    assert collector.running
    time.sleep(seconds)
