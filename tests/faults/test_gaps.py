"""A pause between two phases stays a gap: no span covers it, and the parent's `loop` says how long it was."""

import asyncio
from functools import partial

import pytest
from distributed import Client, Scheduler, Worker, wait

from otel_worker.traces import Span
from tests.faults.tools import (
    ABOVE_OFFLOAD,
    AFTER,
    assert_near,
    below,
    calm,
    cluster,
    lasts,
    local,
    measured,
    one,
    overlap,
    shape,
    slow,
    stop,
    sums,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults


def assert_gap(live: Live, parent: Span) -> None:
    """The fault lies inside of this span and outside of its children."""
    assert_near(overlap("block", parent), measured("block"))
    for child in live.spans():
        if child.parent_id == parent.span_id:
            assert_near(overlap("block", child), 0, child.name)


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_the_loop_is_blocked_before_it_takes_a_fetched_value(live: Live, delay: float):
    """The offload thread has the value; the loop gets something else to do just before it hears of that."""

    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(slow, name="x", nbytes=ABOVE_OFFLOAD, key="slow-1", workers=[a.address])
        await wait(x)
        await calm()
        AFTER.append(partial(asyncio.get_running_loop().call_soon_threadsafe, stop, delay))
        assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    fetch = one(live, "fetch use")
    assert_gap(live, fetch)
    assert_near(sums(one(live, "waiting", "use"), "dask.wait.")["loop"], measured("block"))
    assert_near(fetch.attributes["dask.fetch.time.loop"], measured("block"))
    assert_near(lasts(below(live, fetch, "fetch.deserialize")), 0)
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_the_loop_is_blocked_before_it_takes_a_result(live: Live, delay: float):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        loop = asyncio.get_running_loop()

        @local
        def run() -> None:
            loop.call_soon_threadsafe(stop, delay)

        await calm()
        await c.submit(run, key="run-1")

    scenario()
    execute = one(live, "execute", "run")
    assert_gap(live, execute)
    assert shape(live, execute) == ["execute", "  run"]
    assert_near(sums(execute, "dask.execute.")["loop"], measured("block"))
    assert_near(lasts(below(live, execute, "run")), 0)
    live.check()
