"""Storing a value spills others, loading reads them back: below the phase that caused it, with both keys."""

import os
import resource
import threading
from pathlib import Path

import pytest
from distributed import Client, Scheduler, Worker, wait, worker_client

from otel_worker.traces import Span
from tests.faults.tools import (
    MEGABYTE,
    SPILLS,
    assert_near,
    below,
    calm,
    cluster,
    lasts,
    local,
    measured,
    noting,
    one,
    overlap,
    shape,
    slow,
    sums,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults

HALF = 4 * MEGABYTE  # two of them exceed the target of 5 MB
WHOLE = 6 * MEGABYTE  # is written at once


def small(workers: int):
    return cluster(workers, SPILLS, worker_kwargs={"memory_limit": 10 * MEGABYTE})


def assert_about(span: Span, cause: str, key: str, trigger: str) -> None:
    assert span.attributes["dask.spill.cause"] == cause
    assert span.attributes["dask.spill.key"] == key
    assert span.attributes["dask.spill.trigger_key"] == trigger


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_storing_a_fetched_value_spills_another(live: Live, delay: float):
    @small(2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        old = c.submit(slow, name="old", pickling=delay, claims=HALF, key="slow-1", workers=[b.address])
        new = c.submit(slow, name="new", claims=HALF, key="slow-2", workers=[a.address])
        await wait([old, new])
        await calm()
        assert await c.submit(use, new, key="use-1", workers=[b.address]) == 1

    scenario()
    expected = measured("old.pickling")
    fetch = one(live, "fetch use")
    spill = below(live, fetch, "spill")
    assert_about(spill, "store", "slow-1", "slow-2")
    assert_near(lasts(spill), expected)
    assert_near(lasts(below(live, fetch, "spill.serialize")), expected)
    assert_near(sums(one(live, "waiting", "use"), "dask.wait.")["store.spill"], expected)
    assert shape(live, fetch)[-4:] == ["  fetch.deserialize", "  spill", "    spill.serialize", "    spill.write"]
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_storing_a_result_spills_another(live: Live, delay: float):
    @small(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        old = c.submit(slow, name="old", pickling=delay, claims=HALF, key="slow-1")
        await wait(old)
        await wait(c.submit(slow, name="new", claims=HALF, key="fresh-1"))

    scenario()
    expected = measured("old.pickling")
    execute = one(live, "execute", "fresh")
    spill = below(live, execute, "spill")
    assert_about(spill, "store", "slow-1", "fresh-1")
    assert_near(lasts(spill), expected)
    assert_near(sums(execute, "dask.execute.")["store.spill"], expected)
    assert_near(lasts(below(live, execute, "run")), 0)
    assert shape(live, execute) == ["execute", "  run", "  spill", "    spill.serialize", "    spill.write"]
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_loading_arguments_reads_them_back(live: Live, delay: float):
    @small(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        x = c.submit(slow, name="x", unpickling=delay, claims=WHOLE, key="slow-x")
        await wait(x)
        assert await c.submit(use, x, key="use-1") == 1

    scenario()
    execute = one(live, "execute", "use")
    unspill = below(live, execute, "unspill")
    expected = overlap("x.unpickling", unspill)
    assert_about(unspill, "load", "slow-x", "use-1")
    assert_near(expected, delay)
    assert_near(lasts(unspill), expected)
    assert_near(sums(execute, "dask.execute.")["load.unspill"], expected)
    assert shape(live, execute) == ["execute", "  unspill", "    unspill.read", "    unspill.deserialize", "  run"]
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_a_slow_disk(live: Live, delay: float):
    """The file that the spill opens is a pipe which nobody reads for a while, then all at once."""

    def drain(path: Path) -> None:
        with path.open("rb") as pipe:  # returns once the spill has opened its end
            pipe.read(1)
            with noting("disk"):
                stopped.wait(delay)
            while pipe.read(1 << 16):
                pass

    @small(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        old = c.submit(slow, name="old", nbytes=1 << 20, claims=HALF, key="slow-1")
        await wait(old)
        path = Path(b.data._slow_uncached.d.directory) / "slow-1#0"
        os.mkfifo(path)
        reader = threading.Thread(target=drain, args=(path,))
        reader.start()
        await wait(c.submit(slow, name="new", claims=HALF, key="fresh-1"))
        reader.join(5)

    stopped = threading.Event()
    scenario()
    execute = one(live, "execute", "fresh")
    write = below(live, execute, "spill.write")
    assert_near(lasts(write), measured("disk"))
    assert_near(lasts(below(live, execute, "spill.serialize")), 0)
    assert_near(sums(execute, "dask.execute.")["store.spill"], measured("disk"))
    live.check()


def test_a_full_disk(live: Live):
    """The kernel refuses the file's growth: the value stays in memory, and the spill shows the error."""

    @small(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        old = c.submit(slow, name="old", nbytes=1 << 20, claims=HALF, key="slow-1")
        await wait(old)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            await wait(c.submit(slow, name="new", claims=HALF, key="fresh-1"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert set(b.data.memory) == {"slow-1", "fresh-1"}

    scenario()
    execute = one(live, "execute", "fresh")
    spill = below(live, execute, "spill")
    assert (spill.status, spill.attributes["error.type"]) == ("error", "OSError")
    assert_about(spill, "store", "slow-1", "fresh-1")
    assert one(live, "task fresh").attributes["dask.outcome"] == "memory"
    live.check()


def test_a_value_that_the_function_itself_asks_for_is_read_back_below_run(live: Live):
    """A client in a task gathers what its own worker holds: that is a part of running, and overlaps it."""

    @local
    def gathers() -> int:
        with worker_client() as client:
            return len(client.gather(client.submit(slow, name="old", claims=WHOLE, key="slow-1")).payload)

    @cluster(1, SPILLS, worker_kwargs={"memory_limit": 10 * MEGABYTE})
    async def scenario(c: Client, s: Scheduler, a: Worker):
        old = c.submit(slow, name="old", unpickling=0.2, claims=WHOLE, key="slow-1")
        await wait(old)
        await calm()
        assert await c.submit(gathers, key="gathers-1") == 1000

    scenario()
    unspill = one(live, "unspill")
    run = one(live, "run", "gathers")
    assert unspill.parent_id == run.span_id
    assert unspill.attributes["dask.spill.cause"] == "run"
    assert_near(overlap("old.unpickling", unspill), measured("old.unpickling"))
    assert sums(one(live, "execute", "gathers"), "dask.execute.").get("unspill", 0) == 0
    live.check()
