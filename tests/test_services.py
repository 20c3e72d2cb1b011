"""The Collector's configuration is valid, and what is sent to it arrives in Jaeger whole, also over a restart of either."""

import socket
import subprocess
from pathlib import Path

import pytest
import requests
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter

import tests.services
from otel_worker.traces import Span
from tests.jaeger import Jaeger, eventually
from tests.services import COLLECTOR_CONFIG, JAEGER_CONFIG, Collector, Services

pytestmark = pytest.mark.services


def exporter(collector: Collector, protocol: str) -> SpanExporter:
    if protocol == "grpc":
        return GrpcExporter(endpoint=collector.grpc, insecure=True)
    return HttpExporter(endpoint=f"{collector.http}/v1/traces")


def send(service: str, to: SpanExporter) -> str:
    """Two spans, sent when this returns: a parent, and a child that links to its parent's sibling elsewhere."""
    provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(to))
    tracer = provider.get_tracer("tests")
    elsewhere = trace.Link(trace.SpanContext(0xABC, 0xDEF, is_remote=True))
    with tracer.start_as_current_span("fetch", attributes={"dask.task.prefix": "sum", "keys": ["a", "b"]}) as fetch:
        tracer.start_span("request", kind=trace.SpanKind.CLIENT, links=[elsewhere]).end()
    provider.shutdown()
    return trace.format_trace_id(fetch.get_span_context().trace_id)


def both(spans: list[Span]) -> bool:
    return len(spans) == 2


@pytest.mark.parametrize("config", [COLLECTOR_CONFIG, JAEGER_CONFIG], ids=["collector", "jaeger"])
def test_configurations_are_valid(service_binaries: tuple[Path, Path], config: Path) -> None:
    binary = service_binaries[0] if config is COLLECTOR_CONFIG else service_binaries[1]
    answer = subprocess.run([binary, "validate", "--config", config], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_spans_arrive_with_parent_and_link(jaeger: Jaeger, collector: Collector, protocol: str) -> None:
    trace_id = send(f"test-{protocol}", exporter(collector, protocol))

    fetch, request = jaeger.trace(trace_id, until=both)

    assert (fetch.name, fetch.kind, fetch.parent_id, fetch.links) == ("fetch", "internal", "", ())
    assert fetch.attributes == {"dask.task.prefix": "sum", "keys": ["a", "b"]}
    assert (request.name, request.kind, request.parent_id) == ("request", "client", fetch.span_id)
    assert [link.ref for link in request.links] == [("0" * 29 + "abc", "0" * 13 + "def")]
    assert fetch.start <= request.start <= request.end <= fetch.end
    assert list(jaeger.traces(f"test-{protocol}")) == [trace_id]
    services = jaeger.get("/api/v3/services")["services"]
    assert f"test-{protocol}" in services
    assert "jaeger" not in services


def test_a_batch_larger_than_jaeger_takes_arrives(jaeger: Jaeger, collector: Collector) -> None:
    provider = TracerProvider(resource=Resource({"service.name": "large"}), shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter(collector, "grpc"), max_export_batch_size=500, schedule_delay_millis=60_000)
    )
    tracer = provider.get_tracer("tests")
    with tracer.start_as_current_span("root") as root:
        for _ in range(499):
            tracer.start_span("task", attributes={"keys": "x" * 10_000}).end()
    provider.shutdown()

    jaeger.trace(trace.format_trace_id(root.get_span_context().trace_id), until=lambda spans: len(spans) == 500)


def test_a_trace_that_jaeger_does_not_have_is_empty(jaeger: Jaeger) -> None:
    assert jaeger.trace("1" * 32, until=lambda _: True) == []
    with pytest.raises(AssertionError, match=r"not so within 0 s, last seen: \{\}"):
        jaeger.traces("nobody", within=0)


def test_spans_sent_while_jaeger_is_gone_arrive_when_it_is_back(services: Services) -> None:
    jaeger = services.start_jaeger()
    collector = services.start_collector(jaeger.otlp_grpc)
    jaeger.process.kill()
    trace_id = send("patient", exporter(collector, "grpc"))

    jaeger.process.start()

    assert [span.name for span in jaeger.trace(trace_id, until=both)] == ["fetch", "request"]
    eventually(lambda: collector.own_metric("otelcol_exporter_sent_spans"), until=lambda sent: sent == 2, within=10)


def test_a_collector_that_was_killed_serves_again_at_the_same_place(jaeger: Jaeger, services: Services) -> None:
    collector = services.start_collector(jaeger.otlp_grpc)
    collector.process.kill()
    host, _, port = collector.grpc.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))

    collector.process.start()

    assert both(jaeger.trace(send("again", exporter(collector, "http")), until=both))


def test_what_a_collector_holds_is_sent_when_it_is_stopped(jaeger: Jaeger, services: Services) -> None:
    collector = services.start_collector(jaeger.otlp_grpc, "yaml:processors::batch::timeout: 1h")
    trace_id = send("last words", exporter(collector, "grpc"))

    collector.process.stop()

    assert both(jaeger.trace(trace_id, until=both))


def test_a_port_taken_meanwhile_is_no_failure(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    free = tests.services.free_endpoints
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        offers = iter([[taken, *free(3)], free(4)])
        monkeypatch.setattr(tests.services, "free_endpoints", lambda _: next(offers))
        jaeger = services.start_jaeger()

    assert jaeger.process.running
    assert jaeger.otlp_grpc != taken
    assert next(offers, None) is None


def test_the_monitor_counts_calls_and_no_span_that_stands_for_many(jaeger: Jaeger, services: Services) -> None:
    collector = services.start_collector(
        jaeger.otlp_grpc, "yaml:connectors::span_metrics::metrics_flush_interval: 100ms"
    )
    provider = TracerProvider(resource=Resource({"service.name": "monitored"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter(collector, "grpc")))
    tracer = provider.get_tracer("tests")
    tracer.start_span("tasks sum", attributes={"dask.tasks.count": 1000}).end()
    for _ in range(3):
        tracer.start_span("task sum").end()
    provider.shutdown()

    def calls() -> list[str]:
        lines = requests.get(collector.prometheus_url, timeout=10).text.splitlines()
        return [line for line in lines if line.startswith("traces_span_metrics_calls_total{")]

    (counted,) = eventually(calls, lambda found: any(" 3" in line for line in found), within=20)
    assert 'span_name="task sum"' in counted
    assert 'span_kind="SPAN_KIND_INTERNAL"' in counted
