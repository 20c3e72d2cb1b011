"""What can be read as spans, and what is said of what can't."""

import base64
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_worker.traces import Limits, SourceError, Span, read
from otel_worker.traces.collected import Collected
from otel_worker.traces.otlp import add_cut_document, add_document
from otel_worker.traces.salvage import salvage

TRACE, OTHER = "0af7651916cd43dd8448eb211c80319c", "1" * 32


def otlp(*spans: dict[str, Any], service: str = "dask-worker") -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    scope = {"scope": {"name": "otel_worker", "version": "1"}, "spans": spans}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode() + b"\n"


def span(number: int, parent: int = 0, name: str = "run", trace: str = TRACE, **more: Any) -> dict[str, Any]:
    found = {"traceId": trace, "spanId": f"{number:016x}", "name": name, "kind": 1}
    found |= {"startTimeUnixNano": str(10**18 + number), "endTimeUnixNano": str(10**18 + 100)}
    return found | ({"parentSpanId": f"{parent:016x}"} if parent else {}) | more


def attribute(key: str, kind: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": {kind: value}}


LINES = otlp(span(1)) + otlp(span(2, 1, "waiting"), span(3, 1, "execute"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


def test_a_span_with_everything(file):
    attributes = [
        attribute("s", "stringValue", ""),
        attribute("i", "intValue", "-9007199254740993"),
        attribute("n", "intValue", 0),
        attribute("d", "doubleValue", 0.5),
        attribute("whole", "doubleValue", 2),
        attribute("b", "boolValue", False),
        attribute("list", "arrayValue", {"values": [{"stringValue": "x"}, {"intValue": "0"}, {}]}),
        attribute("map", "kvlistValue", {"values": [attribute("k", "boolValue", True)]}),
        attribute("empty", "arrayValue", {}),
        {"key": "nothing"},
    ]
    file.write_bytes(
        otlp(
            span(
                5,
                1,
                kind=3,
                attributes=attributes,
                events=[{"name": "exception", "timeUnixNano": "7", "attributes": [attribute("x", "intValue", "1")]}],
                links=[{"traceId": OTHER, "spanId": "2" * 16}],
                status={"code": 2, "message": "why"},
                unknown={"to": "us"},
            )
        )
    )
    (found,) = read(file).spans
    assert found.ref == (TRACE, "0000000000000005")
    assert found.parent_ref == (TRACE, "0000000000000001")
    assert (found.name, found.kind, found.start, found.duration) == ("run", "client", 10**18 + 5, 95)
    assert found.attributes == {
        "s": "",
        "i": -9007199254740993,
        "n": 0,
        "d": 0.5,
        "whole": 2.0,
        "b": False,
        "list": ["x", 0, None],
        "map": {"k": True},
        "empty": [],
        "nothing": None,
    }
    assert (found.service, found.scope) == ("dask-worker", "otel_worker")
    assert [(e.name, e.time, e.attributes) for e in found.events] == [("exception", 7, {"x": 1})]
    assert [link.ref for link in found.links] == [(OTHER, "2" * 16)]
    assert (found.status, found.status_message) == ("error", "why")


def framed(lines: bytes) -> bytes:
    """As a Collector's file exporter with compression writes it."""
    frames = [zstandard.compress(line) for line in lines.splitlines()]
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def flushed_zstd(lines: bytes) -> bytes:
    return b"".join(zstandard.compress(line) for line in lines.splitlines(keepends=True))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress, flushed_zstd, framed])
def test_plain_and_compressed(file, pack):
    file.write_bytes(pack(LINES))
    found = read(file)
    assert [s.name for s in found.spans] == ["run", "waiting", "execute"]
    assert found.problems == ()


def test_a_directory(tmp_path):
    (tmp_path / "traces.jsonl").write_bytes(otlp(span(1)))
    (tmp_path / "traces-2.json.gz").write_bytes(gzip.compress(otlp(span(2, 1))))
    (tmp_path / "metrics.jsonl").write_bytes(b'{"resourceMetrics": []}\n')
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "empty.jsonl").touch()
    found = read(tmp_path)
    assert len(found.spans) == 2
    assert found.problems == ()


def spans_metric(temporality: int, *values: int, worker: str = "a") -> bytes:
    attributes = [
        attribute("dask.worker.address", "stringValue", worker),
        attribute("dask.outcome", "stringValue", "dropped"),
    ]
    points = [{"asInt": str(value), "attributes": attributes} for value in values]
    metric = {"name": "otel_worker.spans", "sum": {"dataPoints": points, "aggregationTemporality": temporality}}
    others = [
        {"name": "dask.fetch.duration", "histogram": {"dataPoints": [{"count": "1"}]}},
        {"name": "x", "gauge": {}},
    ]
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [*others, metric]}]}]}).encode() + b"\n"


@pytest.mark.parametrize(("temporality", "dropped"), [(2, 9 + 2), (1, 16 + 2)])
def test_what_the_workers_say_became_of_their_spans(tmp_path, temporality, dropped):
    (tmp_path / "traces.jsonl").write_bytes(LINES)
    counts = spans_metric(temporality, 7) + spans_metric(temporality, 9) + spans_metric(temporality, 2, worker="b")
    (tmp_path / "metrics.jsonl").write_bytes(counts)
    found = read(tmp_path)
    assert found.fates == {"dropped": dropped}
    assert found.problems == ()


def test_a_document_printed_for_people(file):
    file.write_text(json.dumps(json.loads(otlp(span(1))), indent=2))
    assert len(read(file).spans) == 1


def test_ids_in_base64_and_enums_in_words(file):
    encoded = {"traceId": base64.b64encode(bytes.fromhex(TRACE)).decode(), "spanId": "AAAAAAAAAAE="}
    file.write_bytes(otlp(span(1) | encoded | {"kind": "SPAN_KIND_SERVER", "status": {"code": "STATUS_CODE_ERROR"}}))
    (found,) = read(file).spans
    assert (found.ref, found.kind, found.status) == ((TRACE, "0000000000000001"), "server", "error")


def test_selection_by_trace_and_service(file):
    file.write_bytes(LINES + otlp(span(1, trace=OTHER), service="else"))
    assert len(read(file, trace_id=TRACE).spans) == 3
    assert len(read(file, service="else").spans) == 1
    assert read(file, service="else", trace_id=TRACE).spans == ()


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "spans", "words"),
    [
        (b"", 0, "traces.jsonl is empty"),
        (
            LINES[:-40],
            2,
            "The last line of traces.jsonl is cut off or not OTLP JSON (line 2: Input data was truncated; 1 of",
        ),
        (LINES[:-240], 1, "cut off or not OTLP JSON (line 2: Input data was truncated)"),
        (b"hello\n" + LINES, 3, "is not OTLP JSON and was left out (line 1"),
        (b"hello\n" * 3 + LINES, 3, "(3 times, first: line 1"),
        (LINES + b'{"resourceSpans": [3]}\n', 3, "line 3: Expected `object`, got `int`"),
        (LINES + b"\xff\xfe\n", 3, "line 3"),
        (LINES + b'{"resourceSpans":' + b"[" * 3_000 + b"\n", 3, "line 3"),
        (LINES + otlp(span(4) | {"spanId": ""}), 3, "without ids"),
        (LINES + LINES, 3, "3 spans came more than once and count once"),
        (LINES + otlp(span(5, 77, "fetch x")), 4, "1 span with a parent that is not in the data"),
        (LINES + b" " * 5_000 + b"\n", 3, "more than 4,096 bytes"),
        (gzip.compress(LINES)[:-20], 1, "damaged or cut off"),
        (gzip.compress(LINES)[:-4], 3, "damaged or cut off"),
        (gzip.compress(LINES) + b"rubbish", 3, "damaged or cut off"),
        (zstandard.compress(LINES)[:-10], 0, "traces.jsonl"),
        (b"\x28\xb5\x2f\xfdrubbish", 0, "damaged or cut off"),
        (framed(LINES)[:-5], 1, "the last frame is cut off"),
        (gzip.compress(b"\n" * 70_000_000), 0, "grows more than 20 times"),
        (zstandard.compress(b"\n" * 70_000_000), 0, "grows more than 20 times"),
    ],
)
def test_the_rest_is_read_and_a_sentence_says_what_is_not(file, content, spans, words):
    file.write_bytes(content)
    found = read(file, limits=Limits(max_line_bytes=4_096, max_ratio=20, ratio_free_bytes=1_000_000))
    assert len(found.spans) == spans
    assert words in " ".join(found.problems)
    assert all(p.endswith(".") for p in found.problems)


def test_only_so_many_spans(file):
    file.write_bytes(LINES)
    found = read(file, limits=Limits(max_spans=2))
    assert len(found.spans) == 2
    assert found.problems == ("Only the first 2 spans were read.",)


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_nothing_to_read_is_one_sentence(tmp_path, name):
    with pytest.raises(SourceError, match=r"\.$"):
        read(tmp_path / name)


# --- Jaeger ---------------------------------------------------------------------------------------------------------


@contextmanager
def server(answer: Callable[[str], tuple[int, bytes]], claim: int = 0) -> Iterator[str]:
    """A web server that answers a path; `claim` more bytes than it sends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) + claim))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    running = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def wrapped(lines: bytes) -> bytes:
    return b"\n".join(b'{"result":' + line + b"}" for line in lines.splitlines())


def test_a_jaeger_is_asked_for_our_services_and_raw_traces():
    asked = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        return 200, b'{"services":["dask-worker","jaeger"]}' if path == "/api/v3/services" else wrapped(LINES)

    with server(answer) as address:
        assert len(read(address, since=60).spans) == 3
    assert asked[0] == "/api/v3/services"
    assert "query.service_name=dask-worker" in asked[1]
    assert "raw_traces=true" in asked[1]
    assert len(asked) == 2


def test_as_many_traces_as_were_asked_for_may_not_be_all():
    with server(lambda _: (200, wrapped(LINES))) as address:
        assert "1 traces and gave as many" in read(address, service="s", max_traces=1).problems[0]
        assert read(address, service="s", max_traces=2).problems == ()


def test_one_trace_of_a_jaeger():
    with server(lambda path: (200, wrapped(LINES)) if f"/traces/{TRACE}" in path else (404, b"")) as address:
        assert len(read(f"http://{address}/", trace_id=TRACE).spans) == 3


def test_an_unknown_trace_is_no_span():
    with server(lambda _: (404, b'{"error":{"httpCode":404,"message":"No traces found"}}')) as address:
        assert read(address, trace_id=TRACE).spans == ()


JAEGER_SPAN = {
    "traceID": "af7651916cd43dd8448eb211c80319c",
    "spanID": "2",
    "operationName": "fetch x",
    "references": [
        {"refType": "CHILD_OF", "traceID": TRACE, "spanID": "1"},
        {"refType": "FOLLOWS_FROM", "traceID": OTHER, "spanID": "7"},
    ],
    "startTime": 1_700_000_000_000_001,
    "duration": 5,
    "tags": [
        {"key": "span.kind", "type": "string", "value": "client"},
        {"key": "otel.scope.name", "value": "otel_worker"},
        {"key": "otel.status_code", "value": "ERROR"},
        {"key": "otel.status_description", "value": "why"},
        {"key": "error", "type": "bool", "value": True},
        {"key": "dask.fetch.nbytes", "type": "int64", "value": 7},
    ],
    "logs": [{"timestamp": 3, "fields": [{"key": "event", "value": "exception"}]}],
    "processID": "p1",
    "warnings": None,
}
PROCESSES = {"p1": {"serviceName": "dask-worker", "tags": [{"key": "host.name", "value": "h"}]}}
JAEGER_JSON = json.dumps({"data": [{"traceID": TRACE, "spans": [JAEGER_SPAN], "processes": PROCESSES}]}).encode()


def test_an_older_jaeger():
    with server(lambda p: (404, b"404 page not found") if "v3" in p else (200, JAEGER_JSON)) as address:
        (found,) = read(address, service="dask-worker").spans
    assert found.ref == (TRACE, "0000000000000002")
    assert found.parent_id == "0000000000000001"
    assert [link.ref for link in found.links] == [(OTHER, "0000000000000007")]
    assert (found.start, found.duration) == (1_700_000_000_000_001_000, 5_000)
    assert (found.kind, found.scope, found.status, found.status_message) == ("client", "otel_worker", "error", "why")
    assert found.attributes == {"dask.fetch.nbytes": 7}
    assert (found.service, found.resource.host) == ("dask-worker", "h")
    assert [(e.name, e.time) for e in found.events] == [("exception", 3_000)]


def test_what_jaegers_page_downloads(file):
    file.write_bytes(JAEGER_JSON)
    assert len(read(file).spans) == 1


def test_a_jaeger_that_is_down_is_one_sentence():
    with server(lambda _: (200, b"")) as address:
        pass
    with pytest.raises(SourceError, match=f"No Jaeger answers at http://{address}: "):
        read(address)


def test_a_jaeger_that_fails_is_one_sentence():
    with server(lambda _: (500, b"out of memory")) as address, pytest.raises(SourceError, match="500: out of memory"):
        read(address, service="dask-worker")


def test_what_is_no_jaeger_is_one_sentence():
    with server(lambda _: (200, b"<html>")) as address, pytest.raises(SourceError, match="does not answer as a Jaeger"):
        read(address)


def test_a_trace_that_comes_with_each_of_its_services_is_no_problem():
    def answer(path: str) -> tuple[int, bytes]:
        return 200, b'{"services":["dask-worker","dask-client"]}' if path == "/api/v3/services" else wrapped(LINES)

    with server(answer) as address:
        found = read(address)
    assert len(found.spans) == 3
    assert found.problems == ()


def test_a_jaeger_without_our_services():
    with server(lambda _: (200, b'{"services":["x"]}')) as address, pytest.raises(SourceError, match="no service"):
        read(address)


def test_a_cut_answer_is_read_as_far_as_it_goes():
    body = wrapped(LINES)[:-40]
    with server(lambda _: (200, body), claim=999) as address:
        found = read(address, service="dask-worker")
    assert len(found.spans) == 2
    assert (
        f"Jaeger's answer was cut off (after {len(body):,} bytes; of its last part came 1 span)." in found.problems[0]
    )


@pytest.mark.parametrize("document", [LINES.splitlines()[1], wrapped(LINES).splitlines()[1], JAEGER_JSON])
def test_a_document_cut_anywhere_keeps_its_whole_spans(document):
    whole = Collected(Limits())
    add_document(document, whole)
    counts = []
    for length in range(len(document)):
        into = Collected(Limits())
        add_cut_document(document[:length], into)
        counts.append(len(into))
        assert all(s.name and s.end for s in into.traces().spans)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(whole))


@given(st.binary())
def test_anything_can_be_salvaged(data):
    salvage(data)
    salvage(b'{"resourceSpans":' + data)


# --- anything -------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "resourceSpans",
                    "scopeSpans",
                    "resource",
                    "scope",
                    "spans",
                    "attributes",
                    "key",
                    "value",
                    "stringValue",
                    "intValue",
                    "arrayValue",
                    "values",
                    "traceId",
                    "spanId",
                    "name",
                    "kind",
                    "status",
                    "code",
                    "links",
                    "events",
                    "data",
                    "result",
                    "processes",
                    "tags",
                    "references",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_any_json_gives_spans_or_a_value_error(value):
    into = Collected(Limits())
    try:
        add_document(json.dumps(value).encode(), into)
    except ValueError:
        return
    assert all(isinstance(s, Span) for s in into.traces().spans)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_survived(tmp_path_factory, data):
    pack = data.draw(st.sampled_from([bytes, gzip.compress, zstandard.compress, framed]))
    content = bytearray(pack(LINES))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "traces.jsonl"
    file.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    found = read(file)
    assert len(found.spans) <= 3
