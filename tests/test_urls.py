"""`trace_url`: from a future or a key to the page of Jaeger that shows it."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from distributed import Client, Scheduler, Worker, wait
from distributed.utils_test import gen_cluster, inc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import otel_worker
from otel_worker import trace_url
from tests.faults.tools import until
from tests.jaeger import Jaeger, eventually
from tests.live import Live

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])


def tags(url: str) -> dict[str, str]:
    """What a search URL asks for."""
    parts = urlsplit(url)
    assert parts.path.endswith("/search")
    query = parse_qs(parts.query)
    assert (query["service"], query["lookback"]) == (["dask-worker"], ["2d"])
    found: dict[str, str] = json.loads(query["tags"][0])
    return found


def test_of_a_future_and_of_its_key(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        x = c.submit(inc, 1, key="x-1")
        y = c.submit(inc, x, key=("y", 0))
        early = trace_url(y)
        await wait(y)
        traces = {span.name: span.trace_id for span in live.spans() if span.operation == "compute"}
        assert trace_url(x) == f"http://127.0.0.1:16686/trace/{traces['compute x']}?uiFind=x-1"
        assert trace_url(y) == early == f"http://127.0.0.1:16686/trace/{traces['compute y']}?uiFind=%28%27y%27%2C+0%29"
        assert trace_url("x-1", client=c) == trace_url(x)
        assert trace_url(("y", 0), client=c) == trace_url(y)
        assert trace_url(x, "https://host/behind/a/proxy/").startswith("https://host/behind/a/proxy/trace/")

        again = c.submit(inc, 1, key="x-1")  # nothing is computed: it is where it was
        assert trace_url(again) == trace_url(x)
        del x, y, again
        await until(lambda: not live.runtime.submissions.places)
        assert tags(trace_url("x-1", client=c)) == {"dask.task.key": "x-1"}

    scenario()


def test_where_tasks_are_traces_of_their_own(live: Live):
    live.again(trace_per_task=True)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        x = c.submit(inc, 1, key="x-1")
        await wait(x)
        task = live.find("task x", "x-1")
        assert tags(trace_url(x)) == {
            "dask.task.key": "x-1",
            "dask.computation": task.attributes["dask.computation"],
        }

    scenario()
    live.again(max_trace_spans=100)

    @cluster
    async def many(c: Client, s: Scheduler, a: Worker):
        few, more = c.map(inc, range(11)), c.map(inc, range(20, 32))
        assert "/trace/" in trace_url(few[0])
        assert tags(trace_url(more[0]))["dask.task.key"] == more[0].key
        await wait([*few, *more])

    many()


def test_without_us_it_is_a_search():
    assert tags(trace_url("x-1")) == {"dask.task.key": "x-1"}
    assert tags(trace_url(("x", 1), "http://jaeger:16686")) == {"dask.task.key": "('x', 1)"}
    assert "service=mine" in trace_url("x-1", service="mine")


@pytest.mark.parametrize(
    ("what", "jaeger", "error", "says"),
    [
        (None, "http://j", TypeError, "trace_url wants a Future or a task's key, not NoneType"),
        (["x"], "http://j", TypeError, "trace_url wants a Future or a task's key, not list"),
        (
            "x",
            "j:16686",
            ValueError,
            "'j:16686' is not where Jaeger's pages are; give an address such as http://127.0.0.1:16686",
        ),
        ("x", None, ValueError, "None is not where"),
    ],
)
def test_errors_say_what_to_do(what: Any, jaeger: Any, error: type[Exception], says: str):
    with pytest.raises(error, match=f"^{says.replace('(', '[(]')}"):
        trace_url(what, jaeger)


def test_it_is_public():
    assert "trace_url" in otel_worker.__all__


@pytest.mark.services
def test_jaeger_has_what_the_urls_name(live: Live, jaeger: Jaeger):
    """Its own pages ask the same API."""
    exporter = OTLPSpanExporter(endpoint=jaeger.otlp_grpc, insecure=True)
    live.switch.provider.add_span_processor(SimpleSpanProcessor(exporter))

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        x = c.submit(inc, 1, key="urls-x-1")
        await wait(x)
        urls.append(trace_url(x, jaeger.query_url))

    urls: list[str] = []
    scenario()
    searched = trace_url("urls-x-1", jaeger.query_url)
    spans = eventually(lambda: _asked(jaeger, urls[0]), lambda spans: len(spans) >= 4, 20)
    assert {span["operationName"] for span in spans} >= {"compute urls-x", "task urls-x", "run"}
    assert {span["traceID"] for span in _asked(jaeger, searched)} == {span["traceID"] for span in spans}
    exporter.shutdown()


def _asked(jaeger: Jaeger, url: str) -> list[Any]:
    parts = urlsplit(url)
    path = {"trace": f"/api/traces/{parts.path.rpartition('/')[2]}", "search": "/api/traces"}[parts.path.split("/")[1]]
    query = {name: values[0] for name, values in parse_qs(parts.query).items() if name != "uiFind"}
    try:
        found = jaeger.get(path, **query)["data"]
    except OSError:  # 404: not there yet
        return []
    return [span for one in found for span in one["spans"]]
