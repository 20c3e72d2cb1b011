"""How data moves: gather, scatter, replicate, rebalance, get_data asked directly; and the odd kinds of tasks that use it."""

import asyncio
import os
import threading

import pytest
from distributed import (
    Client,
    Event,
    Reschedule,
    Scheduler,
    Worker,
    get_client,
    get_worker,
    secede,
    wait,
    worker_client,
)
from distributed.active_memory_manager import ActiveMemoryManagerPolicy
from distributed.core import Status
from distributed.protocol import to_serialize
from distributed.utils_test import (
    BarrierGetData,
    async_poll_for,
    gen_cluster,
    inc,
    slowinc,
    wait_for_state,
)

two = [("127.0.0.1", 1)] * 2
three = [("127.0.0.1", 1)] * 3


# --- gather and scatter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [False, True])
@gen_cluster(client=True, nthreads=two)
async def test_gather(c: Client, s: Scheduler, a: Worker, b: Worker, direct: bool):
    xs = [c.submit(inc, i, key=f"x-{i}", workers=[w.address]) for i, w in enumerate([a, b, a, b])]
    assert await c.gather(xs, direct=direct) == [1, 2, 3, 4]


@gen_cluster(client=True, nthreads=two)
async def test_gather_skips_errors(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [c.submit(inc, 1), c.submit(len, 5)]
    assert await c.gather(xs, errors="skip") == [2]
    with pytest.raises(TypeError):
        await c.gather(xs)


@gen_cluster(client=True, nthreads=two)
async def test_gather_of_a_closed_worker(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address], allow_other_workers=True)
    await wait(x)
    await a.close()
    assert await c.gather(x) == 2


@pytest.mark.parametrize("direct", [False, True])
@gen_cluster(client=True, nthreads=two)
async def test_scatter(c: Client, s: Scheduler, a: Worker, b: Worker, direct: bool):
    xs = await c.scatter(list(range(6)), direct=direct)
    assert len(a.data) + len(b.data) == 6
    assert await c.submit(sum, xs) == 15


@gen_cluster(client=True, nthreads=three)
async def test_broadcast(c: Client, s: Scheduler, a: Worker, b: Worker, d: Worker):
    x = await c.scatter(123, broadcast=True)
    assert a.data == b.data == d.data == {x.key: 123}


@gen_cluster(client=True, nthreads=three)
async def test_replicate(c: Client, s: Scheduler, a: Worker, b: Worker, d: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    await c.replicate([x])
    assert all("x" in w.data for w in (a, b, d))
    assert len(s.tasks["x"].who_has) == 3


REBALANCE = "distributed.worker.memory.rebalance."


@gen_cluster(
    client=True,
    nthreads=two,
    config={
        REBALANCE + "measure": "managed",
        REBALANCE + "sender-min": 0.0,
        REBALANCE + "sender-recipient-gap": 0.0,
    },
)
async def test_rebalance(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [c.submit(os.urandom, 50_000, key=f"x-{i}", workers=[a.address], pure=False) for i in range(8)]
    await wait(xs)
    await c.rebalance()
    assert a.data
    assert b.data
    assert len(a.data) + len(b.data) == 8


@gen_cluster(client=True, nthreads=two)
async def test_the_worker_gathers(c: Client, s: Scheduler, a: Worker, b: Worker):
    """The handler behind replicate and rebalance."""
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    assert await b.gather(who_has={"x": [a.address]}) == {"status": "OK"}
    assert b.data == {"x": 2}
    reply = await b.gather(who_has={"nobody": [a.address]})
    assert reply["status"] == "partial-fail"
    assert set(reply["keys"]) == {"nobody"}


# --- get_data asked directly -------------------------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=two)
async def test_get_data(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    async with c.rpc(a.address) as worker:
        reply = await worker.get_data(keys=["x", "unknown"])
    assert reply["status"] == "OK"
    assert set(reply) == {"status", "data"}
    assert list(reply["data"]) == ["x"]


@gen_cluster(client=True, nthreads=two)
async def test_get_data_of_a_busy_worker(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    a.transfer_outgoing_count_limit = 0
    reply = await b.rpc(a.address).get_data(keys=["x"], who=b.address)
    assert reply == {"status": "busy"}


@gen_cluster(client=True, nthreads=two)
async def test_get_data_refuses_what_it_does_not_know(c: Client, s: Scheduler, a: Worker, b: Worker):
    with pytest.raises(TypeError):
        await b.rpc(a.address).get_data(keys=[], who=b.address, surprise=1)
    assert await c.submit(inc, 1, workers=[a.address]) == 2


@gen_cluster(client=True, nthreads=two)
async def test_update_data_by_hand(c: Client, s: Scheduler, a: Worker, b: Worker):
    async with c.rpc(a.address) as worker:
        reply = await worker.update_data(data={"x": to_serialize(1), "y": to_serialize(2)})
    assert reply["status"] == "OK"
    assert a.data == {"x": 1, "y": 2}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_peers_are_asked_at_once(c: Client, s: Scheduler, a: Worker):
    async with (
        BarrierGetData(s.address, barrier_count=1) as b,
        BarrierGetData(s.address, barrier_count=1) as d,
    ):
        x = c.submit(inc, 1, key="x", workers=[b.address])
        y = c.submit(inc, 2, key="y", workers=[d.address])
        z = c.submit(sum, [x, y], key="z", workers=[a.address])
        assert await z == 5


@gen_cluster(client=True, nthreads=two)
async def test_many_keys_in_one_message(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [c.submit(inc, i, key=f"x-{i}", workers=[a.address]) for i in range(50)]
    await wait(xs)
    before = b.state.transfer_incoming_count_total
    assert await c.submit(sum, xs, key="sum", workers=[b.address]) == sum(range(1, 51))
    assert b.state.transfer_incoming_count_total - before == 1


@gen_cluster(client=True, nthreads=two, config={"distributed.worker.transfer.message-bytes-limit": "100 kB"})
async def test_many_messages_for_large_keys(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [c.submit(os.urandom, 60_000, key=f"x-{i}", workers=[a.address], pure=False) for i in range(6)]
    await wait(xs)
    await c.submit(len, xs, key="len", workers=[b.address])
    assert b.state.transfer_incoming_count_total == 6


@gen_cluster(client=True, nthreads=two)
async def test_the_same_key_for_many_dependents(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(os.urandom, 100_000, key="x", workers=[a.address])
    ys = [c.submit(lambda v, i: len(v) + i, x, i, key=f"y-{i}", workers=[b.address]) for i in range(10)]
    assert await c.gather(ys) == [100_000 + i for i in range(10)]
    assert b.state.transfer_incoming_count_total == 1


@gen_cluster(client=True, nthreads=two)
async def test_large_data_goes_round_the_loop(c: Client, s: Scheduler, a: Worker, b: Worker):
    """Above 10 MB, (de)serializing is offloaded to a thread."""
    x = c.submit(bytes, 12_000_000, key="x", workers=[a.address])
    assert await c.submit(len, x, key="y", workers=[b.address]) == 12_000_000


@pytest.mark.parametrize("protocol", ["tcp://", "inproc://"])
@gen_cluster(client=True, nthreads=[])
async def test_other_transports(c: Client, s: Scheduler, protocol: str):
    host = {"host": "127.0.0.1"} if protocol == "tcp://" else {"protocol": protocol}
    async with (
        Scheduler(dashboard_address=":0", **host) as scheduler,
        Worker(scheduler.address, nthreads=1) as a,
        Worker(scheduler.address, nthreads=1) as b,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        x = client.submit(os.urandom, 1000, key="x", workers=[a.address])
        assert await client.submit(len, x, key="y", workers=[b.address]) == 1000


@gen_cluster(client=True, nthreads=two)
async def test_concurrent_graphs(c: Client, s: Scheduler, a: Worker, b: Worker):
    async def one(i):
        xs = [c.submit(slowinc, j, delay=0.002, key=f"x-{i}-{j}") for j in range(10)]
        return await c.submit(sum, xs, key=f"sum-{i}")

    assert await asyncio.gather(*(one(i) for i in range(8))) == [55] * 8


# --- the active memory manager -----------------------------------------------------------------------------------------


class Spread(ActiveMemoryManagerPolicy):  # type: ignore[misc]  # Dask is not typed for us
    """One more replica of everything."""

    def run(self):
        for ts in list(self.manager.scheduler.tasks.values()):
            if ts.state == "memory":
                yield "replicate", ts, None


@gen_cluster(
    client=True,
    nthreads=two,
    config={"distributed.scheduler.active-memory-manager.start": False},
)
async def test_the_memory_manager_replicates(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    s.extensions["amm"].add_policy(Spread())
    s.extensions["amm"].run_once()
    await async_poll_for(lambda: "x" in b.data, timeout=5)


@gen_cluster(
    client=True,
    nthreads=three,
    config={"distributed.scheduler.active-memory-manager.start": False},
)
async def test_the_memory_manager_reduces(c: Client, s: Scheduler, a: Worker, b: Worker, d: Worker):
    x = c.submit(inc, 1, key="x")
    await wait(x)
    await c.replicate([x])
    await c.amm.run_once()
    await async_poll_for(lambda: sum("x" in w.data for w in (a, b, d)) == 1, timeout=5)


# --- odd tasks -----------------------------------------------------------------------------------------------------------


class Counter:
    n = 0

    def increment(self):
        self.n += 1
        return self.n

    async def slowly(self):
        await asyncio.sleep(0.01)
        return self.n

    def fails(self):
        raise ZeroDivisionError("in the actor")


@gen_cluster(client=True, nthreads=two)
async def test_actors(c: Client, s: Scheduler, a: Worker, b: Worker):
    counter = await c.submit(Counter, actor=True, workers=[a.address], key="counter")
    assert [await counter.increment() for _ in range(3)] == [1, 2, 3]
    assert await counter.n == 3
    assert await counter.slowly() == 3
    with pytest.raises(ZeroDivisionError):
        await counter.fails()
    assert set(a.state.actors) == {"counter"}


def use_actor(counter):
    return counter.increment().result()


@gen_cluster(client=True, nthreads=two)
async def test_actors_from_tasks(c: Client, s: Scheduler, a: Worker, b: Worker):
    counter = c.submit(Counter, actor=True, workers=[a.address], key="counter")
    assert await c.submit(use_actor, counter, key="use", workers=[b.address]) == 1


@gen_cluster(client=True, nthreads=[("127.0.0.1", 4, {"resources": {"GPU": 2}})])
async def test_resources(c: Client, s: Scheduler, a: Worker):
    running, most = [0], [0]
    lock = threading.Lock()

    def work(i):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        Event("never-set").is_set()
        with lock:
            running[0] -= 1
        return i

    a.data_plane = work
    xs = [c.submit(call_plane, i, key=f"x-{i}", resources={"GPU": 1}) for i in range(8)]
    assert await c.gather(xs) == list(range(8))
    assert most[0] <= 2
    assert a.state.available_resources == {"GPU": 2}


def call_plane(i):
    return get_worker().data_plane(i)


@gen_cluster(
    client=True, nthreads=two, config={"distributed.worker.memory.pause": False}
)  # its monitor would resume it
async def test_a_paused_worker(c: Client, s: Scheduler, a: Worker, b: Worker):
    a.status = Status.paused
    x = c.submit(inc, 1, key="x", workers=[a.address])
    y = c.submit(inc, 1, key="y", workers=[b.address], pure=False)
    assert await y == 2
    assert not x.done()
    a.status = Status.running
    assert await x == 2


@gen_cluster(client=True, nthreads=two)
async def test_a_paused_worker_serves(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    a.status = Status.paused
    assert await c.submit(inc, x, key="y", workers=[b.address]) == 3


@gen_cluster(client=True, nthreads=two)
async def test_reschedule(c: Client, s: Scheduler, a: Worker, b: Worker):
    def once():
        worker = get_worker()
        worker.calls = getattr(worker, "calls", 0) + 1
        if sum(getattr(w, "calls", 0) for w in (a, b)) < 2:
            raise Reschedule
        return "done"

    a.once = b.once = once
    assert await c.submit(call_once, key="x") == "done"
    assert getattr(a, "calls", 0) + getattr(b, "calls", 0) == 2


def call_once():
    return get_worker().once()


@gen_cluster(client=True, nthreads=two)
async def test_stealing(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    ys = [
        c.submit(slowinc, x, delay=0.05, key=f"y-{i}", workers=[a.address], allow_other_workers=True, pure=False)
        for i in range(10)
    ]
    steal = s.extensions["stealing"]
    await async_poll_for(lambda: any(ts.processing_on for ts in s.tasks.values()), timeout=5)
    for ts in list(s.tasks.values()):
        if ts.key.startswith("y-9") and ts.processing_on is s.workers[a.address]:
            steal.move_task_request(ts, s.workers[a.address], s.workers[b.address])
    assert await c.gather(ys) == [3] * 10


def nested(n):
    with worker_client() as client:
        return sum(client.gather(client.map(inc, range(n))))


@gen_cluster(client=True, nthreads=two)
async def test_worker_client(c: Client, s: Scheduler, a: Worker, b: Worker):
    assert await c.submit(nested, 5, key="nested") == 15


def nested_get_client(n):
    client = get_client()
    futures = client.map(inc, range(n), key=[f"sub-{i}" for i in range(n)])
    secede()
    return sum(client.gather(futures))


@gen_cluster(client=True, nthreads=two)
async def test_get_client(c: Client, s: Scheduler, a: Worker, b: Worker):
    assert await c.submit(nested_get_client, 5, key="nested") == 15


async def naps(n):
    await asyncio.sleep(0.01)
    return n + 1


async def naps_and_fails(n):
    await asyncio.sleep(0.01)
    raise ZeroDivisionError(n)


@gen_cluster(client=True, nthreads=two)
async def test_async_tasks(c: Client, s: Scheduler, a: Worker, b: Worker):
    assert await c.gather(c.map(naps, range(5))) == [1, 2, 3, 4, 5]
    with pytest.raises(ZeroDivisionError):
        await c.submit(naps_and_fails, 1)


@gen_cluster(client=True, nthreads=two)
async def test_long_running(c: Client, s: Scheduler, a: Worker, b: Worker):
    go = Event()
    x = c.submit(secedes, go, key="x", workers=[a.address])
    await wait_for_state("x", "long-running", a)
    assert await c.submit(inc, 1, key="y", workers=[a.address]) == 2
    await go.set()
    assert await x == "back"


def secedes(go):
    secede()
    go.wait()
    return "back"


@gen_cluster(client=True, nthreads=two)
async def test_an_exception_whose_text_fails(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(raises_silent, key="x")
    await wait(x)
    assert x.status == "error"
    assert await c.submit(inc, 1, key="y") == 2


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def raises_silent():
    raise SilentError


@pytest.mark.parametrize("key", ["line\nbreak", "nul\x00", ("tuple", 1, ("deep", 2)), "k" * 100_000, "ünï-cødé"])
@gen_cluster(client=True, nthreads=two)
async def test_odd_keys(c: Client, s: Scheduler, a: Worker, b: Worker, key: object):
    x = c.submit(inc, 1, key=key, workers=[a.address])
    assert await c.submit(inc, x, key="y", workers=[b.address]) == 3


@gen_cluster(client=True, nthreads=two)
async def test_annotations_reach_the_worker(c: Client, s: Scheduler, a: Worker, b: Worker):
    import dask

    with dask.annotate(colour="red", priority=3):
        x = c.submit(inc, 1, key="x", workers=[a.address])
    await wait(x)
    assert a.state.tasks["x"].annotations["colour"] == "red"


# --- P2P -----------------------------------------------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=two)
async def test_p2p_rechunk(c: Client, s: Scheduler, a: Worker, b: Worker):
    da = pytest.importorskip("dask.array")
    x = da.ones((20, 20), chunks=(20, 2)).rechunk((2, 20), method="p2p")
    assert await c.compute(x.sum()) == 400


@gen_cluster(client=True, nthreads=two)
async def test_p2p_shuffle(c: Client, s: Scheduler, a: Worker, b: Worker):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    dd = pytest.importorskip("dask.dataframe")
    df = dd.from_pandas(pd.DataFrame({"a": range(100), "b": [i % 7 for i in range(100)]}), npartitions=5)
    out = await c.compute(df.shuffle("b", shuffle_method="p2p"))
    assert len(out) == 100
    assert out["a"].sum() == sum(range(100))
