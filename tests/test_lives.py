"""However a task's life on a worker goes: each span that was opened ends once, says how, and nothing of it stays behind."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from distributed import Client, Event, Scheduler, Status, Worker, wait
from distributed.utils_test import BlockedGatherDep, gen_cluster, inc, wait_for_state
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import Span as OpenSpan

from otel_worker.runtime import Runtime
from otel_worker.traces import Span
from otel_worker.trees import tree
from tests.faults.tools import until
from tests.live import Live

QUIET = {
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.memory.pause": False,
}
TWO = [("127.0.0.1", 1)] * 2
cluster = gen_cluster(client=True, nthreads=TWO, config=QUIET)

SAYS_HOW = ("compute", "task", "fetch", "get_data", "gather")


class Balance(SpanProcessor):
    """How often each span was opened and ended."""

    def __init__(self) -> None:
        self.opened: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()

    def on_start(self, span: OpenSpan, parent_context: Context | None = None) -> None:
        self.opened[span.get_span_context().span_id] += 1

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        self.ended[span.context.span_id] += 1


@pytest.fixture
def balanced(live: Live, caplog: pytest.LogCaptureFixture) -> Iterator[Live]:
    """Afterwards every span has ended once and says how, whatever became of its task."""
    balance = Balance()
    live.switch.provider.add_span_processor(balance)
    yield live
    live.check()
    assert balance.ended == balance.opened
    assert set(balance.ended.values()) == {1}
    assert "ended span" not in caplog.text  # what the SDK says of a span that is ended twice
    assert [s.name for s in live.spans() if s.operation in SAYS_HOW and not s.attributes.get("dask.outcome")] == []


def outcomes(live: Live, operation: str = "task") -> dict[str, list[str]]:
    """By key, in the order in which they began."""
    found: dict[str, list[str]] = {}
    for span in sorted(live.spans(), key=lambda s: s.start):
        if span.operation == operation:
            found.setdefault(span.attributes["dask.task.key"], []).append(span.attributes["dask.outcome"])
    return found


RAN: list[str] = []  # what `hold` was called with, each time


def hold(until: str, *_: object) -> None:
    RAN.append(until)
    Event(until).wait()


# --- one life each ---------------------------------------------------------------------------------------------------


def test_stolen(balanced: Live):
    """One life on the victim, which ends when the thief may have it, and one on the thief."""

    @gen_cluster(client=True, nthreads=TWO, config={**QUIET, "distributed.scheduler.work-stealing": True})
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await s.extensions["stealing"].stop()
        free = Event("free")
        held = c.submit(hold, "free", key="hold-1", workers=[a.address])
        x = c.submit(inc, 1, key="x-1", workers=[a.address, b.address])
        y = c.submit(inc, 1, key="y-1", workers=[a.address], allow_other_workers=True)
        await until(lambda: "y-1" in a.state.tasks and a.state.tasks["y-1"].state == "ready")
        stealing = s.extensions["stealing"]
        stealing.move_task_request(s.tasks["y-1"], s.workers[a.address], s.workers[b.address])
        assert await y == await x == 2
        await free.set()
        await held

    scenario()
    assert outcomes(balanced)["y-1"] == ["stolen", "memory"]
    assert balanced.tree("compute y") == [
        "compute y",
        "  submit",
        "  task y",
        "    ready",
        "  task y",
        "    execute",
        "      run",
    ]


def test_given_up_while_it_waits_for_data(balanced: Live):
    """Its fetch goes on, and ends for itself."""

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], config=QUIET)
    async def scenario(c: Client, s: Scheduler, a: Worker):
        async with BlockedGatherDep(s.address) as b:
            x = c.submit(inc, 1, key="x-1", workers=[a.address])
            y = c.submit(inc, x, key="y-1", workers=[b.address])
            await b.in_gather_dep.wait()
            await y.cancel()
            await wait_for_state("x-1", "cancelled", b)
            b.block_gather_dep.set()
            await until(lambda: not b.state.tasks)

    scenario()
    assert outcomes(balanced) == {"x-1": ["memory"], "y-1": ["released"]}


def test_given_up_and_wanted_again_while_it_runs(balanced: Live):
    """Each submission has a life, as Dask runs it for each: what comes of the first run is not taken for the second."""

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        free = Event("free")
        RAN.clear()
        x = c.submit(hold, "free", key="hold-1", workers=[a.address])
        await wait_for_state("hold-1", "executing", a)
        await x.cancel()
        await wait_for_state("hold-1", "cancelled", a)
        x = c.submit(hold, "free", key="hold-1", workers=[a.address])
        await wait_for_state("hold-1", "executing", a)
        await free.set()
        await x

    scenario()
    assert outcomes(balanced) == {"hold-1": ["memory"] * len(RAN)}
    assert [s.name for s in balanced.spans() if s.name == "run"] == ["run"] * len(RAN)
    ends = [s.attributes["dask.outcome"] for s in balanced.spans() if s.operation == "compute"]
    assert sorted(ends) == ["cancelled", "finished"]


def test_on_a_worker_that_is_paused_and_goes_on(balanced: Live):
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], config=QUIET)
    async def scenario(c: Client, s: Scheduler, a: Worker):
        free = Event("free")
        held = c.submit(hold, "free", key="hold-1")
        x = c.submit(inc, 1, key="x-1", workers=[a.address])
        await wait_for_state("x-1", "ready", a)
        a.status = Status.paused
        await free.set()
        await held
        await asyncio.sleep(0.2)
        a.status = Status.running
        assert await x == 2

    scenario()
    assert outcomes(balanced) == {"hold-1": ["memory"], "x-1": ["memory"]}
    ready = next(s for s in balanced.spans() if s.name == "ready" and s.attributes["dask.task.prefix"] == "x")
    assert ready.attributes["dask.ready.paused"] >= 0.2


def test_on_a_worker_that_retires(balanced: Live):
    """What it runs it may end; what waits goes to another."""

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        held = c.submit(hold, "free", key="hold-1", workers=[a.address])
        x = c.submit(inc, 1, key="x-1", workers=[a.address], allow_other_workers=True)
        await wait_for_state("hold-1", "executing", a)
        await wait_for_state("x-1", "ready", a)
        retired = asyncio.create_task(c.retire_workers([a.address]))
        await Event("free").set()
        await retired
        assert await x == 2
        await held.cancel()

    scenario()
    assert outcomes(balanced)["x-1"][-1] == "memory"


def test_on_a_worker_that_closes(balanced: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        held = c.submit(hold, "free", key="hold-1", workers=[a.address])
        x = c.submit(inc, 1, key="x-1", workers=[a.address], allow_other_workers=True)
        await wait_for_state("x-1", "ready", a)
        closed = asyncio.create_task(a.close(executor_wait=False))
        assert await x == 2
        await Event("free").set()
        await closed
        await held.cancel()

    scenario()
    assert outcomes(balanced)["x-1"][-1] == "memory"
    assert set(outcomes(balanced)["x-1"][:-1]) <= {"closed", "released"}


# --- thousands -------------------------------------------------------------------------------------------------------


def kept(runtime: Runtime) -> dict[str, int]:
    """What of ours holds anything."""
    sizes: Counter[str] = Counter()
    for recorder in runtime.by_worker.values():
        sizes.update(recorder.sizes())
    for spans in runtime.spans.values():
        sizes["produced"] += len(spans.tasks.produced)
        sizes["coalesced"] += len(spans.tasks._coalesced.groups)
    sizes["futures"] = len(runtime.submissions.by_future)
    sizes["places"] = len(runtime.submissions.places)
    return {name: size for name, size in sizes.items() if size}


def counted(spans: list[Span]) -> Counter[str]:
    """Tasks by outcome: those with spans of their own, and those that a `tasks` span stands for."""
    found: Counter[str] = Counter()
    for span in spans:
        if span.operation == "task":
            found[span.attributes["dask.outcome"]] += 1
        elif span.operation == "tasks":
            for outcome, _, count in (line.partition(": ") for line in span.attributes["dask.tasks.outcomes"]):
                found[outcome] += int(count)
    return found


EACH = 2500


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_ten_thousand_nothing_stays(balanced: Live):
    """Computed and forgotten, passed on, stolen, and cancelled: in the end every map of ours is empty."""
    balanced.again(span_burst=400.0, span_budget=20.0, coalesce_interval=0.2)

    @gen_cluster(
        client=True,
        nthreads=TWO,
        timeout=500,
        config={
            "distributed.scheduler.worker-saturation": "inf",
            "distributed.scheduler.work-stealing-interval": "20ms",
        },
    )
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        s.validate = a.state.validate = b.state.validate = False
        computed = c.map(inc, range(EACH), pure=False)
        passed = c.map(inc, computed, pure=False)
        await wait(passed)
        del computed, passed
        stolen = c.map(time.sleep, [0.0005] * EACH, pure=False, workers=[a.address], allow_other_workers=True)
        await wait(stolen)
        del stolen
        held = [c.submit(hold, "free", i, workers=[w.address]) for i, w in enumerate((a, b))]
        cancelled = c.map(inc, range(EACH), pure=False)
        await until(lambda: len(a.state.tasks) + len(b.state.tasks) >= EACH)
        await c.cancel(cancelled)
        await Event("free").set()
        await wait(held)
        del held, cancelled
        await until(lambda: not a.state.tasks and not b.state.tasks)
        assert balanced.runtime is not None
        runtime = balanced.runtime
        await until(lambda: not kept(runtime))
        assert all(len(spans.emitter._computations) <= 1000 for spans in runtime.spans.values())

    logging.getLogger("distributed").setLevel(logging.WARNING)
    scenario()
    found = counted(balanced.spans())
    assert found.total() >= 4 * EACH
    assert found["memory"] >= 3 * EACH
    assert found["released"] >= EACH // 2
    assert found["stolen"] > 0
    runtime = balanced.runtime
    assert [
        len(m) for m in (runtime.by_counter, runtime.by_worker, runtime.by_slow, runtime.spans, runtime._closed)
    ] == [0] * 5
    assert tree(s for s in balanced.spans() if s.operation == "tasks")
