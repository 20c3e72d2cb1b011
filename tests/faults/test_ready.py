"""Why a task that has its data does not run yet, and what loading and storing cost when they push others out."""

import asyncio

import pytest
from distributed import Client, Scheduler, Worker, wait

from tests.faults.tools import (
    MEGABYTE,
    SPILLS,
    assert_near,
    below,
    calm,
    cluster,
    hold,
    lasts,
    local,
    measured,
    noting,
    one,
    overlap,
    shape,
    slow,
    sums,
    until,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults

HALF = 4 * MEGABYTE
WHOLE = 6 * MEGABYTE


def ready(live: Live, prefix: str) -> dict[str, float]:
    span = one(live, "ready", prefix)
    parts = sums(span, "dask.ready.")
    assert abs(sum(parts.values()) - lasts(span)) < 1e-5
    return parts


@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_the_one_thread_is_held(live: Live, delay: float):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        first = c.submit(hold, name="held", seconds=delay, key="hold-1")
        await until(lambda: "hold-1" in b.state.tasks)
        assert await c.gather([first, c.submit(use, key="use-1", workers=[b.address])]) == [1, 1]

    scenario()
    assert_near(ready(live, "use")["thread_slot"], overlap("held", one(live, "ready", "use")))
    assert_near(lasts(one(live, "ready", "use")), overlap("held", one(live, "ready", "use")))
    assert shape(live, one(live, "task use")) == ["task use", "  ready", "  execute", "    run"]
    live.check()


@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_a_resource_is_taken(live: Live, delay: float):
    """Two threads, one of them free: the second task waits for the resource alone."""

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, _: Worker):
        async with Worker(s.address, name="gpu", nthreads=2, resources={"GPU": 1}) as b:
            on_gpu = {"resources": {"GPU": 1}}
            first = c.submit(hold, name="held", seconds=delay, key="hold-1", **on_gpu)
            await until(lambda: "hold-1" in b.state.tasks)
            # a scheduler that knows what is taken still sends it: only one worker has any
            assert await c.gather([first, c.submit(use, key="use-1", **on_gpu)]) == [1, 1]

    scenario()
    span = one(live, "ready", "use")
    assert_near(ready(live, "use")["resources"], overlap("held", span))
    assert_near(ready(live, "use").get("thread_slot", 0), 0)
    live.check()


def test_loading_one_argument_pushes_another_value_out(live: Live):
    @cluster(1, SPILLS, worker_kwargs={"memory_limit": 10 * MEGABYTE})
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(slow, name="x", unpickling=0.2, claims=HALF, key="slow-1")
        await wait(x)
        y = c.submit(slow, name="y", pickling=0.3, claims=HALF, key="slow-2")
        await wait(y)
        assert set(b.data.disk) == {"slow-1"}
        assert await c.submit(use, x, key="use-1") == 1

    scenario()
    execute = one(live, "execute", "use")
    unspill, spill = below(live, execute, "unspill"), below(live, execute, "spill")
    parts = sums(execute, "dask.execute.")
    assert_near(lasts(unspill), overlap("x.unpickling", unspill))
    assert_near(parts["load.unspill"], overlap("x.unpickling", unspill))
    assert_near(lasts(spill), overlap("y.pickling", spill))
    assert_near(parts["load.spill"], overlap("y.pickling", spill))
    assert [spill.attributes[f"dask.spill.{name}"] for name in ("key", "trigger_key", "cause")] == [
        "slow-2",
        "use-1",
        "load",
    ]
    assert shape(live, execute) == [
        "execute",
        "  unspill",
        "    unspill.read",
        "    unspill.deserialize",
        "  spill",
        "    spill.serialize",
        "    spill.write",
        "  run",
    ]
    live.check()


def test_a_peer_that_reads_back_pushes_another_value_out(live: Live):
    @cluster(2, SPILLS, worker_kwargs={"memory_limit": 10 * MEGABYTE})
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(slow, name="x", unpickling=0.2, claims=HALF, key="slow-1", workers=[a.address])
        await wait(x)
        y = c.submit(slow, name="y", pickling=0.3, claims=HALF, key="slow-2", workers=[a.address])
        await wait(y)
        await calm()
        assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    get_data = one(live, "get_data", peer__kind="worker")
    unspill, spill = below(live, get_data, "unspill"), below(live, get_data, "spill")
    assert unspill.end <= spill.start
    waited = sums(one(live, "waiting", "use"), "dask.wait.")
    assert_near(waited["peer.unspill"], overlap("x.unpickling", unspill))
    assert_near(waited["peer.spill"], overlap("y.pickling", spill))
    assert spill.attributes["dask.spill.key"] == "slow-2"
    assert spill.attributes["dask.spill.trigger_key"] == "slow-1"
    live.check()


@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_a_function_that_works_and_one_that_sleeps(live: Live, delay: float):
    """Its thread's CPU time is told apart from the wall."""

    @local
    def spin(seconds: float) -> None:
        import time

        begun = time.thread_time()
        while time.thread_time() - begun < seconds:
            pass

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        await c.submit(hold, name="held", seconds=delay, key="hold-1")
        await c.submit(spin, delay, key="spin-1")

    scenario()
    for prefix, cpu in (("hold", 0.0), ("spin", delay)):
        run = one(live, "run", prefix)
        parts = sums(one(live, "execute", prefix), "dask.execute.")
        assert_near(run.attributes["dask.run.thread_cpu"], cpu)
        assert_near(parts["run.cpu"], cpu)
        assert_near(run.attributes["dask.run.thread_noncpu"], lasts(run) - cpu)
    assert_near(lasts(one(live, "run", "hold")), measured("held"))
    live.check()


def test_an_async_task_that_is_cancelled(live: Live):
    """Dask lets it run on: it lasts as long as its coroutine."""

    @local
    async def waits() -> None:
        with noting("coroutine"):
            started.set()
            await asyncio.sleep(0.4)

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(waits, key="waits-1")
        await started.wait()
        await c.cancel(x)
        await until(lambda: not b.state.tasks)

    started = asyncio.Event()
    scenario()
    assert one(live, "task waits").attributes["dask.outcome"] == "cancelled"
    assert_near(lasts(one(live, "run")), measured("coroutine"))
    live.check()
