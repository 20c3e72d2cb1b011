"""The main job, with a real Collector and a real Jaeger: a cluster of the command line, and what Jaeger then has of it."""

import json
import uuid
from collections import Counter
from dataclasses import dataclass

import pytest

from otel_worker.checks import check
from otel_worker.traces import Span
from otel_worker.trees import subtree, tree
from tests.jaeger import Jaeger, eventually
from tests.processes import Programs
from tests.services import Collector

pytestmark = [pytest.mark.services, pytest.mark.slow]

# Every phase a span, and all of them within the budget: the trees do not depend on how fast this machine is.
EVERYTHING = {
    "OTEL_PYTHON_DASK_MIN_PHASE": "0",
    "OTEL_PYTHON_DASK_SPAN_BUDGET": "100000",
    "OTEL_PYTHON_DASK_SPAN_BURST": "100000",
}
# Values beyond a few megabytes are spilled, whatever else the process needs; each task runs where it was sent first.
DASK = {
    "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.6",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
}
SERVICES = {"dask-client", "dask-worker", "dask-worker-b"}


@dataclass(frozen=True)
class Run:
    spans: list[Span]
    printed: dict[str, float]

    def one(self, operation: str, key: str) -> Span:
        (found,) = (s for s in self.spans if s.operation == operation and s.attributes.get("dask.task.key") == key)
        return found

    def named(self, operation: str) -> list[Span]:
        return [span for span in self.spans if span.operation == operation]


@pytest.fixture(scope="module")
def run(jaeger: Jaeger, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Run:
    programs = Programs(tmp_path_factory.mktemp("end-to-end"))
    try:
        return work(programs, jaeger, f"http://{collector.grpc}")
    finally:
        programs.end()


def work(programs: Programs, jaeger: Jaeger, endpoint: str) -> Run:
    mark = uuid.uuid4().hex
    common = {**EVERYTHING, **DASK, "endpoint": endpoint, "OTEL_RESOURCE_ATTRIBUTES": f"test.run={mark}"}
    scheduler = programs.scheduler(**common)
    memory = ("--memory-limit", "16MB")
    workers = [
        programs.worker(scheduler, "a", *memory, **common),
        programs.worker(scheduler, "b", *memory, "--no-nanny", **common, OTEL_SERVICE_NAME="dask-worker-b"),
    ]
    printed = json.loads(programs.script("frames.py", scheduler.address, **common).printed(120))
    for program in (*workers, scheduler.program):
        program.terminate()
        assert program.ended() == 0
        assert "otel_worker" not in program.logged()

    spans: list[Span] = []

    def problems() -> list[str]:
        found = {s.ref: s for service in SERVICES for s in jaeger.spans(service=service)}
        spans[:] = (span for span in found.values() if span.resource.attributes.get("test.run") == mark)
        count = sum(s.operation == "task" and s.attributes["dask.outcome"] == "memory" for s in spans)
        return [f"{count} tasks of {printed['tasks']}"] * (count != printed["tasks"]) + check(spans)[:10]

    eventually(problems, lambda found: not found, 60)
    return Run(spans, printed)


def test_results_are_right(run: Run) -> None:
    assert (run.printed["fetched"], run.printed["array"], run.printed["frame"]) == (2001, 0, 2_800_000)


def test_the_trace_of_a_fetch(run: Run) -> None:
    task = run.one("task", "sum-1")
    (compute,) = (span for span in run.named("compute") if span.ref == task.parent_ref)
    assert tree(subtree(run.spans, compute)) == [
        "compute sum",
        "  submit",
        "  task sum",
        "    waiting",
        "      fetch sum",
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


def test_a_fetch_goes_over_two_services(run: Run) -> None:
    """`get_data` stands below the peer's `request`, in one trace."""
    by_ref = {span.ref: span for span in run.spans}
    ways: Counter[tuple[str, str]] = Counter()
    for served in run.named("get_data"):
        if served.parent_id:
            request = by_ref[served.parent_ref]
            assert (request.name, request.kind, served.kind) == ("request", "client", "server")
            assert request.attributes["dask.peer.instrumented"] is True
            ways[request.service, served.service] += 1
    assert set(ways) == {("dask-worker", "dask-worker-b"), ("dask-worker-b", "dask-worker")}


def test_links(run: Run) -> None:
    """Between traces and within one: what was served to whom, and by whom it was made."""
    by_ref = {span.ref: span for span in run.spans}
    (served,) = (span for span in run.named("get_data") if span.attributes["dask.fetch.keys"] == ["late-1"])
    assert [by_ref[link.ref] for link in served.links] == [run.one("task", "late-1")]
    fetch = by_ref[by_ref[served.parent_ref].parent_ref]
    first = by_ref[by_ref[fetch.parent_ref].parent_ref]
    (second,) = {"sum-2", "amax-2", "max-2"} & {*keys(run, "task")} - {first.attributes["dask.task.key"]}
    other = run.one("task", second)
    assert [by_ref[link.ref] for link in fetch.links] == [other]
    assert [by_ref[link.ref] for link in other.links] == [fetch]
    kinds = {(span.operation, by_ref[link.ref].operation) for span in run.spans for link in span.links}
    assert kinds == {("fetch", "task"), ("task", "fetch"), ("get_data", "task")}


def keys(run: Run, operation: str) -> list[str]:
    return [span.attributes["dask.task.key"] for span in run.named(operation)]


def test_spills_stand_below_what_caused_them(run: Run) -> None:
    by_ref = {span.ref: span for span in run.spans}
    below = {
        (s.name, by_ref[s.parent_ref].operation) for s in run.spans if s.name in ("spill", "unspill") and s.parent_id
    }
    assert {("spill", "execute"), ("unspill", "execute"), ("unspill", "get_data")} <= below
    for span in (*run.named("spill"), *run.named("unspill")):
        assert span.attributes["dask.spill.key"]


def test_who_is_seen(run: Run) -> None:
    assert {span.service for span in run.spans} == SERVICES
    assert all(span.resource.host for span in run.spans)
    assert {span.scope for span in run.spans} == {"otel_worker"}
    names = {(s.service, s.attributes["dask.worker.name"]) for s in run.spans if s.service != "dask-client"}
    assert names == {("dask-worker", "a"), ("dask-worker-b", "b")}


def test_jaeger_has_every_task_and_every_parent(run: Run) -> None:
    assert Counter(span.attributes["dask.outcome"] for span in run.named("task")) == {"memory": run.printed["tasks"]}
    assert check(run.spans) == []
    assert {span.operation for span in run.spans if not span.parent_id} <= {
        "compute",
        "get_data",
        "fetch",
        "spill",
        "event_loop.blocked",
    }
