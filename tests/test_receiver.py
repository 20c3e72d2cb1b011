"""The receiver takes what real exporters and hand-made requests send, and stores exactly that."""

import gzip
import http.client
import json
import os
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from otel_worker.otlp_json import generic_to_json, traces_to_json
from otel_worker.receiver import LinesFile, Receiver

SPAN = {"traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "a"}
REQUEST = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with Receiver(tmp_path / "store", max_message_bytes=100_000) as running:
        yield running


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def spans(path: Path) -> list[dict[str, Any]]:
    return [s for line in lines(path) for r in line["resourceSpans"] for c in r["scopeSpans"] for s in c["spans"]]


def export_one(exporter: SpanExporter) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("t").start_as_current_span("outer", attributes={"n": 3, "list": ["a", "b"]}):
        provider.get_tracer("t").start_span("inner").end()
    provider.shutdown()


def post(receiver: Receiver, body: bytes, path: str = "/v1/traces", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(receiver.http_endpoint.rsplit(":", 1)[1]), timeout=20)
    named = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    with closing(connection):  # also where it is refused or cut
        connection.request("POST", path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_stores_what_the_http_exporter_sends(receiver, compression):
    export_one(HttpExporter(f"{receiver.http_endpoint}/v1/traces", compression=compression))
    inner, outer = spans(receiver.path)
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert inner["parentSpanId"] == outer["spanId"]
    assert outer["attributes"][0] == {"key": "n", "value": {"intValue": "3"}}
    assert receiver.spans_received == 2


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_stores_what_the_grpc_exporter_sends(receiver, compression):
    export_one(GrpcExporter(receiver.grpc_endpoint, insecure=True, compression=compression))
    assert [s["name"] for s in spans(receiver.path)] == ["inner", "outer"]
    assert receiver.spans_received == 2


def test_metrics_have_a_file_of_their_own(receiver):
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.http_endpoint}/v1/metrics"))
    provider = MeterProvider([reader])
    provider.get_meter("t").create_counter("dask.spill.io").add(7)
    provider.shutdown()
    (found,) = lines(receiver.metrics_path)
    point = found["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["sum"]["dataPoints"][0]
    assert point["asInt"] == "7"
    assert receiver.path.read_bytes() == b""


def test_json_becomes_one_line(receiver):
    status, _ = post(receiver, json.dumps(REQUEST, indent=2).encode())
    assert status == 200
    assert lines(receiver.path) == [REQUEST]


def test_logs_are_accepted_and_forgotten(receiver):
    assert post(receiver, b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{}]}]}]}', "/v1/logs")[0] == 200
    assert sorted(p.name for p in receiver.folder.iterdir()) == ["metrics.jsonl", "traces.jsonl"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b'{"resourceSpans": 3}', {}, 400),
        (b'{"resourceSpans": [[]]}', {}, 400),
        (b"\xff\xff\xff", {"Content_Type": "application/x-protobuf"}, 400),
        (b"<a/>", {"Content_Type": "text/xml"}, 415),
        (b"x", {"Content_Encoding": "br"}, 415),
        (b"x", {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(b"{}")[:-9], {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(b" " * 10_000_000), {"Content_Encoding": "gzip"}, 413),
        (zlib.compress(b" " * 10_000_000), {"Content_Encoding": "deflate"}, 413),
        (b" " * 100_001, {}, 413),
    ],
)
def test_refuses_in_words(receiver, body, headers, status):
    found, message = post(receiver, body, **headers)
    assert found == status
    assert message
    assert receiver.path.read_bytes() == b""
    assert post(receiver, json.dumps(REQUEST).encode())[0] == 200


def test_unknown_path(receiver):
    assert post(receiver, b"{}", "/v2/traces")[0] == 404


def test_deeply_nested_json_is_refused(receiver):
    assert post(receiver, b'{"resourceSpans":' + b"[" * 40_000 + b"]" * 40_000 + b"}")[0] == 400


def test_grpc_refuses_what_is_no_request_and_what_is_too_long(receiver):
    with grpc.insecure_channel(receiver.grpc_endpoint.removeprefix("http://")) as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as bad:
            export(b"\xff\xff", timeout=10)
        with pytest.raises(grpc.RpcError) as too_long:
            export(b"\0" * 200_000, timeout=10)
    assert bad.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert too_long.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_keep_alive_connection_is_used_again_and_does_not_hold_the_end_up(tmp_path):
    with Receiver(tmp_path) as receiver:
        connection = http.client.HTTPConnection("127.0.0.1", int(receiver.http_endpoint.rsplit(":", 1)[1]), timeout=20)
        for _ in range(3):
            connection.request("POST", "/v1/traces", json.dumps(REQUEST), {"Content-Type": "application/json"})
            assert connection.getresponse().read() == b"{}"
    assert receiver.spans_received == 3
    connection.close()


def test_a_half_sent_request_does_not_hold_the_end_up(tmp_path):
    with Receiver(tmp_path) as receiver:
        sender = socket.create_connection(("127.0.0.1", int(receiver.http_endpoint.rsplit(":", 1)[1])))
        sender.sendall(b"POST /v1/traces HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    assert receiver.path.read_bytes() == b""
    sender.close()


def test_nothing_that_was_accepted_is_lost_when_it_closes_under_load(tmp_path):
    accepted = []

    def send(receiver: Receiver) -> None:
        while True:
            try:
                status, _ = post(receiver, json.dumps(REQUEST).encode())
            except OSError:
                return
            if status != 200:
                return
            accepted.append(1)

    with Receiver(tmp_path) as receiver:
        senders = [threading.Thread(target=send, args=(receiver,)) for _ in range(3)]
        for sender in senders:
            sender.start()
        while receiver.spans_received < 50:
            senders[0].join(0.01)
    for sender in senders:
        sender.join()
    assert len(accepted) <= len(lines(receiver.path)) == receiver.spans_received


def test_a_second_run_appends_after_a_torn_line(tmp_path):
    (tmp_path / "traces.jsonl").write_bytes(b'{"resourceSp')
    with Receiver(tmp_path) as receiver:
        assert post(receiver, json.dumps(REQUEST).encode())[0] == 200
    torn, whole = receiver.path.read_text().splitlines()
    assert torn == '{"resourceSp'
    assert json.loads(whole) == REQUEST


def test_a_full_disk_leaves_whole_lines_and_asks_to_try_again(receiver, monkeypatch):
    assert post(receiver, json.dumps(REQUEST).encode())[0] == 200
    write = os.write

    def half(fd: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(fd, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        status, message = post(receiver, json.dumps(REQUEST).encode())
    assert status == 503
    assert b"No space left" in message
    assert lines(receiver.path) == [REQUEST]


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="no O_NOFOLLOW here")
def test_does_not_write_through_a_link_out_of_its_folder(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "traces.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"traces\.jsonl"):
        LinesFile(tmp_path / "store" / "traces.jsonl")
    assert not (tmp_path / "elsewhere").exists()


def test_the_fast_encoding_of_spans_equals_the_generic_one():
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add(schema_url="r")
    resource.resource.attributes.add(key="service.name").value.string_value = "dask-worker"
    scope = resource.scope_spans.add(schema_url="s")
    scope.scope.name, scope.scope.version = "otel_worker", "1"
    span = scope.spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, parent_span_id=b"p" * 8, name="fetch", kind=3, flags=1)
    span.start_time_unix_nano, span.end_time_unix_nano = 1_700_000_000_123_456_789, 2**63
    for key, kind, value in [
        ("a", "int_value", -5),
        ("b", "double_value", 0.5),
        ("c", "bool_value", False),
        ("d", "bytes_value", b"x"),
        ("e", "string_value", ""),
        ("nan", "double_value", float("inf")),
    ]:
        setattr(span.attributes.add(key=key).value, kind, value)
    span.attributes.add(key="nothing")
    span.attributes.add(key="list").value.array_value.values.add().string_value = "é"
    span.attributes.add(key="map").value.kvlist_value.values.add(key="k").value.int_value = 0
    span.events.add(name="exception", time_unix_nano=5).attributes.add(key="k").value.int_value = 1
    span.links.add(trace_id=b"u" * 16, span_id=b"v" * 8, flags=1, trace_state="a=b")
    span.status.code, span.status.message = 2, "why"
    span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count = 1, 2, 3
    scope.spans.add(status={})
    assert traces_to_json(request) == generic_to_json(request)
