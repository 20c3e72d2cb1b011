"""Dask's fine performance metrics: which activities a worker books, under which labels, and that they add up."""

import asyncio
import os
import time

import pytest
from distributed import Client, Event, Reschedule, Scheduler, Worker, get_worker, wait
from distributed.metrics import context_meter
from distributed.utils_test import BlockedGetData, async_poll_for, gen_cluster, inc, slowinc, wait_for_state

SPILL = {
    "distributed.worker.memory.target": 0.6,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}


def booked(worker, activity):
    """{(prefix or nothing, label, unit): value} of an activity."""
    found = {}
    for key, value in worker.digests_total.items():
        if isinstance(key, tuple) and key[0] == activity:
            found[key[-3:] if activity == "execute" else key[-2:]] = value
    return found


def labels(worker, activity, unit):
    return {key[-2] for key in booked(worker, activity) if key[-1] == unit}


def sleeps(seconds):
    time.sleep(seconds)
    return os.urandom(8)


def spins(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def fails():
    raise ValueError("expected")


async def naps(seconds):
    await asyncio.sleep(seconds)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_execute(c: Client, s: Scheduler, a: Worker):
    await c.submit(sleeps, 0.1, key=("sleeps", 0))
    metrics = booked(a, "execute")
    assert {key[0] for key in metrics} == {"sleeps"}
    assert labels(a, "execute", "seconds") == {"thread-cpu", "thread-noncpu", "executor", "other"}
    assert 0.05 < metrics["sleeps", "thread-noncpu", "seconds"] < 1


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cpu_time_is_told_apart(c: Client, s: Scheduler, a: Worker):
    await c.submit(spins, 0.1, key="spins-0")
    assert booked(a, "execute")["spins", "thread-cpu", "seconds"] >= 0.09


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_prefixes_are_told_apart(c: Client, s: Scheduler, a: Worker):
    await wait([c.submit(inc, i, key=("inc", i)) for i in range(3)])
    await wait([c.submit(sleeps, 0.01, key=("sleeps", i)) for i in range(3)])
    assert {key[0] for key in booked(a, "execute")} == {"inc", "sleeps"}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_failed_task(c: Client, s: Scheduler, a: Worker):
    await wait(c.submit(fails, key="fails-0"))
    assert labels(a, "execute", "seconds") == {"failed"}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_an_async_task(c: Client, s: Scheduler, a: Worker):
    await c.submit(naps, 0.05, key="naps-0")
    assert labels(a, "execute", "seconds") <= {"executor", "other", "thread-cpu", "thread-noncpu"}
    assert sum(v for k, v in booked(a, "execute").items() if k[-1] == "seconds") >= 0.05


def once_rescheduled():
    worker = get_worker()
    if not hasattr(worker, "rescheduled"):
        worker.rescheduled = True
        raise Reschedule
    return 1


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_rescheduled_task(c: Client, s: Scheduler, a: Worker):
    assert await c.submit(once_rescheduled, key="once-0") == 1
    assert "cancelled" in labels(a, "execute", "seconds")


def blocks(entered, go):
    entered.set()
    go.wait()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_cancelled_task(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(blocks, entered, go, key="blocks-0")
    await entered.wait()
    await x.cancel()
    await wait_for_state("blocks-0", "cancelled", a)
    await go.set()
    await async_poll_for(lambda: not a.state.tasks, timeout=10)
    assert "cancelled" in labels(a, "execute", "seconds")


def custom():
    context_meter.digest_metric("mine", 2, "widgets")
    with context_meter.meter("inner"):
        time.sleep(0.02)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_custom_metrics_of_a_task(c: Client, s: Scheduler, a: Worker):
    await wait([c.submit(custom, key=("custom", i), pure=False) for i in range(2)])
    metrics = booked(a, "execute")
    assert metrics["custom", "mine", "widgets"] == 4
    assert metrics["custom", "inner", "seconds"] >= 0.04


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_gather_dep_and_get_data(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(os.urandom, 100_000, key="x", workers=[a.address])
    await c.submit(len, x, key="y", workers=[b.address])
    assert labels(b, "gather-dep", "seconds") >= {"network", "other", "deserialize"}
    assert labels(a, "get-data", "seconds") >= {"network", "serialize"}
    assert not labels(a, "gather-dep", "seconds")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_gather_adds_up(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [c.submit(os.urandom, 100_000, key=f"x-{i}", workers=[a.address], pure=False) for i in range(5)]
    await wait(xs)
    start = time.monotonic()
    await c.submit(len, xs, key="y", workers=[b.address])
    elapsed = time.monotonic() - start
    assert 0 < sum(v for k, v in booked(b, "gather-dep").items() if k[-1] == "seconds") <= elapsed


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, config={"distributed.worker.connections.outgoing": 1})
async def test_a_busy_peer(c: Client, s: Scheduler, a: Worker, b: Worker):
    a.transfer_outgoing_count_limit = 0
    x = c.submit(inc, 1, key="x", workers=[a.address])
    y = c.submit(inc, x, key="y", workers=[b.address])
    await async_poll_for(lambda: "busy" in labels(b, "gather-dep", "seconds"), timeout=10)
    a.transfer_outgoing_count_limit = 10
    assert await y == 3


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_failed_gather(c: Client, s: Scheduler, a: Worker):
    async with BlockedGetData(s.address) as b:
        x = c.submit(inc, 1, key="x", workers=[b.address], allow_other_workers=True)
        y = c.submit(inc, x, key="y", workers=[a.address])
        await b.in_get_data.wait()
        await b.close()
        b.block_get_data.set()
        assert await y == 3
    assert "failed" in labels(a, "gather-dep", "seconds")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], worker_kwargs={"memory_limit": 100_000}, config=SPILL)
async def test_spilling_and_reading_back(c: Client, s: Scheduler, a: Worker):
    xs = [c.submit(os.urandom, 25_000, key=f"x-{i}", pure=False) for i in range(4)]
    await wait(xs)
    await c.submit(len, xs[0], key="y")
    metrics = booked(a, "execute")
    assert metrics["x", "disk-write", "count"] >= 2
    assert metrics["y", "disk-read", "count"] == 1
    assert metrics["y", "disk-read", "bytes"] >= 25_000
    assert ("y", "disk-read", "seconds") in metrics


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, worker_kwargs={"memory_limit": 100_000}, config=SPILL)
async def test_reading_back_for_a_peer(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [c.submit(os.urandom, 25_000, key=f"x-{i}", workers=[a.address], pure=False) for i in range(4)]
    await wait(xs)
    await c.submit(len, xs[0], key="y", workers=[b.address])
    assert booked(a, "get-data")["disk-read", "count"] == 1


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    worker_kwargs={"memory_limit": "1000 MB"},
    config={
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": 0.7,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.monitor-interval": "10ms",
    },
)
async def test_the_memory_monitor(c: Client, s: Scheduler, a: Worker):
    a.monitor.get_process_memory = lambda: 800_000_000 if a.data.fast else 0
    x = c.submit(inc, 1, key="x")
    await wait(x)
    await async_poll_for(lambda: ("disk-write", "count") in booked(a, "memory-monitor"), timeout=10)
    assert "disk-write" in labels(a, "memory-monitor", "seconds")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_the_scheduler_adds_the_workers_up(c: Client, s: Scheduler, a: Worker, b: Worker):
    await wait([c.submit(slowinc, 1, delay=0.02, key=("x", i), workers=[w.address]) for i in range(2) for w in (a, b)])
    await a.heartbeat()
    await b.heartbeat()
    metrics = {k[-3:]: v for k, v in s.cumulative_worker_metrics.items() if isinstance(k, tuple) and k[0] == "execute"}
    assert {key[-2] for key in metrics} >= {"thread-cpu", "thread-noncpu"}
    for key, total in metrics.items():
        assert total == pytest.approx(booked(a, "execute").get(key, 0) + booked(b, "execute").get(key, 0))


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_counts_of_states(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(blocks, entered, go, key="x")
    ready = c.map(inc, range(3), workers=[a.address])
    await entered.wait()
    await async_poll_for(lambda: len(a.state.ready) == 3, timeout=10)
    counts = a.state.task_counter.current_count(by_prefix=False)
    assert counts["executing"] == 1
    assert counts["ready"] == 3
    await go.set()
    await wait([x, *ready])
    times = a.state.task_counter.cumulative_elapsed(by_prefix=True)
    assert any(key[0] == "inc" and value > 0 for key, value in times.items())
