"""Deserializing what was fetched: on the loop or in the one offload thread, the queue before it told apart."""

import pytest
from distributed import Client, Scheduler, Worker, wait

from tests.faults.tools import (
    ABOVE_OFFLOAD,
    THREADS,
    assert_near,
    below,
    broken,
    calm,
    cluster,
    every,
    lasts,
    measured,
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


@pytest.mark.parametrize(("nbytes", "thread"), [(1000, "MainThread"), (ABOVE_OFFLOAD, "Dask-Offload")])
@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_a_slow_value(live: Live, delay: float, nbytes: int, thread: str):
    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(slow, name="x", unpickling=delay, nbytes=nbytes, key="slow-x", workers=[a.address])
        await wait(x)
        await calm()
        assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    expected = measured("x.unpickling")
    deserialize = one(live, "fetch.deserialize")
    assert THREADS["x.unpickling"].startswith(thread)
    assert_near(lasts(deserialize), expected)
    assert_near(overlap("x.unpickling", deserialize), expected)
    assert_near(deserialize.attributes["dask.offload.queue"], 0)
    assert_near(sums(one(live, "waiting", "use"), "dask.wait.")["deserialize"], expected)
    get_data = one(live, "get_data", peer__kind="worker")
    assert_near(get_data.attributes["dask.get_data.ack_wait"], expected, "the peer waits for our OK")
    assert get_data.end < deserialize.end
    live.check()


def test_three_behind_the_one_offload_thread(live: Live):
    @cluster(4)
    async def scenario(c: Client, s: Scheduler, b: Worker, *peers: Worker):
        values = [
            c.submit(slow, name=f"x{i}", unpickling=0.4, nbytes=ABOVE_OFFLOAD, key=f"slow-{i}", workers=[peer.address])
            for i, peer in enumerate(peers)
        ]
        await wait(values)
        await calm()
        assert await c.submit(use, *values, key="use-1", workers=[b.address]) == 1

    scenario()
    work = sum(measured(f"x{i}.unpickling") for i in range(3))
    waited = sums(one(live, "waiting", "use"), "dask.wait.")
    assert_near(waited["deserialize"], work)
    assert_near(waited.get("deserialize.queue", 0), 0)
    assert_near(sum(waited.values()), lasts(one(live, "waiting", "use")))
    found = every(live, "fetch.deserialize")
    queues = [span.attributes["dask.offload.queue"] for span in found]
    assert len(found) == 3
    for seen, expected in zip(sorted(queues), (0.0, 0.4, 0.8), strict=True):
        assert abs(seen - expected) < 0.15, queues  # the values arrive one after the other too
    for span, queue in zip(found, queues, strict=True):
        assert_near(lasts(span) - queue, 0.4, "work")
    live.check()


def test_a_value_that_cant_be_deserialized(live: Live):
    """Dask leaves the task that needs it waiting for ever (distributed#6705), so here the client gives it up."""

    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(broken, key="broken-1", workers=[a.address])
        y = c.submit(use, x, key="use-1", workers=[b.address])
        await until(lambda: "broken-1" in b.state.tasks and b.state.tasks["broken-1"].state == "error")
        await c.cancel([y, x])
        await until(lambda: not b.state.tasks)

    scenario()
    fetch = one(live, "fetch use")
    assert fetch.attributes["dask.outcome"] == "failure"
    assert (fetch.status, fetch.attributes["error.type"]) == ("error", "ValueError")
    assert below(live, fetch, "request").status == "unset"
    assert one(live, "task use").attributes["dask.outcome"] == "released"
    assert shape(live, fetch)[-5:] == [
        "  request",
        "    get_data",
        "      get_data.serialize",
        "      get_data.send",
        "  fetch.deserialize",
    ]
    live.check()
