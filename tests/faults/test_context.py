"""What is current in a user's function is its own task's `run`, whatever ran in this thread or loop before."""

import asyncio
import contextvars
import threading
from contextlib import nullcontext

import pytest
from distributed import Client, Scheduler, Worker, get_client, worker_client
from opentelemetry import trace

from otel_worker.traces import Ref, Span, by_ref
from tests.faults.tools import cluster, every, local, one, shape, use
from tests.live import Live

pytestmark = pytest.mark.faults

TASKS = 200


def above(span: Span, known: dict[Ref, Span]) -> list[str]:
    names = []
    while span.parent_id:
        span = known[span.parent_ref]
        names.append(span.name)
    return names


def key_above(span: Span, known: dict[Ref, Span]) -> str:
    while "dask.task.key" not in span.attributes:
        span = known[span.parent_ref]
    return str(span.attributes["dask.task.key"])


def assert_each_below_its_own_task(live: Live, prefix: str) -> None:
    known = by_ref(live.spans())
    users = every(live, "of the user")
    assert len(users) == TASKS / 2
    for span in users:
        assert above(span, known) == ["run", "execute", f"task {prefix}", f"compute {prefix}"]
        assert key_above(span, known) == f"{prefix}-{span.attributes['index']}"
    live.check()


def test_nothing_leaks_between_tasks(live: Live):
    tracer = live.switch.provider.get_tracer("user")

    @local
    def work(i: int) -> int:
        if i % 2:
            with tracer.start_as_current_span("of the user", attributes={"index": i}):
                return i
        return i

    @cluster(2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        futures = c.map(work, range(TASKS), key=[f"work-{i}" for i in range(TASKS)])
        assert await c.gather(futures) == list(range(TASKS))

    scenario()
    assert_each_below_its_own_task(live, "work")


def test_nothing_leaks_between_async_tasks(live: Live):
    tracer = live.switch.provider.get_tracer("user")

    async def work(i: int) -> int:
        await asyncio.sleep(0.001 * (i % 3))
        if i % 2:
            with tracer.start_as_current_span("of the user", attributes={"index": i}):
                await asyncio.sleep(0.001)
                return i
        await asyncio.sleep(0.001)
        return i

    @cluster(2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        futures = c.map(local(work), range(TASKS), key=[f"work-{i}" for i in range(TASKS)])
        assert await c.gather(futures) == list(range(TASKS))

    scenario()
    assert_each_below_its_own_task(live, "work")


def test_spans_of_the_user_nest_in_run(live: Live):
    tracer = live.switch.provider.get_tracer("user")

    @local
    def work() -> None:
        with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
            trace.get_current_span().add_event("seen")
        trace.get_current_span().set_attribute("mine", 1)

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        await c.submit(work, key="work-1")

    scenario()
    assert shape(live, one(live, "compute work")) == [
        "compute work",
        "  submit",
        "  task work",
        "    execute",
        "      run",
        "        outer",
        "          inner",
    ]
    assert one(live, "run").attributes["mine"] == 1
    live.check()


def test_a_thread_of_the_user(live: Live):
    """With the context carried over its spans stand below `run`; without, they are the user's own traces."""
    tracer = live.switch.provider.get_tracer("user")

    def note(name: str) -> None:
        tracer.start_span(name).end()

    @local
    def work() -> None:
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=context.run, args=(note, "carried")),
            threading.Thread(target=note, args=("apart",)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        await c.submit(work, key="work-1")

    scenario()
    known = by_ref(live.spans())
    assert above(one(live, "carried"), known) == ["run", "execute", "task work", "compute work"]
    assert above(one(live, "apart"), known) == []
    live.check()


def test_a_thread_that_outlives_its_task_hangs_below_what_is_left(live: Live):
    """After the end of the task its stand-in answers with the span that exists, and starts none."""
    tracer = live.switch.provider.get_tracer("user")
    over, noted = threading.Event(), threading.Event()

    def note() -> None:
        over.wait(5)
        tracer.start_span("late").end()
        noted.set()

    @local
    def work() -> None:
        threading.Thread(target=contextvars.copy_context().run, args=(note,)).start()

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        await c.submit(work, key="work-1")
        over.set()
        await asyncio.to_thread(noted.wait, 5)

    scenario()
    late = one(live, "late")
    assert late.trace_id == one(live, "compute work").trace_id
    assert late.parent_id in {s.span_id for s in live.spans()}
    assert len(every(live, "run")) == 1
    live.check()


@pytest.mark.parametrize("how", ["worker_client", "get_client"])
def test_a_graph_submitted_inside_a_task_hangs_below_its_run(live: Live, how: str):
    """`worker_client` leaves its thread to others meanwhile; `get_client` alone keeps it."""

    @local
    def nested() -> int:
        with worker_client() if how == "worker_client" else nullcontext(get_client()) as client:
            return int(client.gather(client.submit(use, key="use-1")))

    @cluster(2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        assert await c.submit(nested, key="nested-1", workers=[a.address]) == 1

    scenario()
    names = shape(live, one(live, "compute nested"))
    assert [line for line in names if "get_data" not in line] == [
        "compute nested",
        "  submit",
        "  task nested",
        "    execute",
        "      run",
        "        compute use",
        "          submit",
        "          task use",
        "            execute",
        "              run",
    ]
    assert ("dask.run.seceded" in one(live, "run", "nested").attributes) is (how == "worker_client")
    live.check()
