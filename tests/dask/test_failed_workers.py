"""Peers that die, close, restart, answer late or not at all: tasks come to their end all the same."""

import asyncio
import os
from pathlib import Path

import pytest
from distributed import Client, Event, KilledWorker, Nanny, Scheduler, Worker, wait
from distributed.core import CommClosedError, Status
from distributed.utils_test import (
    BlockedExecute,
    BlockedGatherDep,
    BlockedGetData,
    async_poll_for,
    captured_logger,
    freeze_data_fetching,
    gen_cluster,
    inc,
    slowadd,
    slowinc,
    wait_for_state,
)
from distributed.worker_state_machine import FreeKeysEvent

two = [("127.0.0.1", 1)] * 2


@gen_cluster(client=True, nthreads=two)
async def test_a_lost_result_is_computed_again(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(inc, 1, key="x", workers=[a.address], allow_other_workers=True)
    await wait(x)
    await a.close()
    y = c.submit(inc, x, key="y")
    assert await y == 3
    assert "x" in b.data


@gen_cluster(client=True, nthreads=two)
async def test_a_whole_graph_survives_a_close(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = c.map(slowinc, range(20), delay=0.01)
    ys = c.map(slowadd, xs[:-1], xs[1:], delay=0.01)
    total = c.submit(sum, ys)
    await wait(xs[:4])
    await a.close()
    assert await total == sum(i + 1 + i + 2 for i in range(19))


@gen_cluster(client=True, nthreads=two, config={"distributed.comm.timeouts.connect": "1s"})
async def test_the_peer_closes_during_a_fetch(c: Client, s: Scheduler, a: Worker, b: Worker):
    async with BlockedGetData(s.address) as x_holder:
        x = c.submit(inc, 1, key="x", workers=[x_holder.address], allow_other_workers=True)
        y = c.submit(inc, x, key="y", workers=[a.address])
        await x_holder.in_get_data.wait()
        await x_holder.close()
        x_holder.block_get_data.set()
        assert await y == 3


@gen_cluster(client=True, nthreads=two)
async def test_the_peer_closes_before_the_fetch(c: Client, s: Scheduler, a: Worker, b: Worker):
    async with BlockedGatherDep(s.address) as w:
        x = c.submit(inc, 1, key="x", workers=[a.address], allow_other_workers=True)
        y = c.submit(inc, x, key="y", workers=[w.address])
        await w.in_gather_dep.wait()
        await a.close()
        w.block_gather_dep.set()
        assert await y == 3


@gen_cluster(client=True, nthreads=two)
async def test_the_other_replica_serves(c: Client, s: Scheduler, a: Worker, b: Worker):
    async with BlockedGatherDep(s.address) as w:
        (x,) = await c.scatter([1], broadcast=False, workers=[a.address])
        await c.replicate([x], n=2, workers=[a.address, b.address])
        y = c.submit(inc, x, key="y", workers=[w.address])
        await w.in_gather_dep.wait()
        await a.close()
        w.block_gather_dep.set()
        assert await y == 2


@gen_cluster(client=True, nthreads=two)
async def test_a_connection_is_cut_during_a_fetch(c: Client, s: Scheduler, a: Worker, b: Worker):
    async with BlockedGetData(s.address) as w:
        x = c.submit(inc, 1, key="x", workers=[w.address])
        y = c.submit(inc, x, key="y", workers=[a.address])
        await w.in_get_data.wait()
        for comm, op in list(w._comms.items()):
            if op == "get_data":
                comm.abort()
        w.block_get_data.set()
        assert await y == 3


@gen_cluster(client=True, nthreads=two)
async def test_data_that_vanished_without_a_word(c: Client, s: Scheduler, a: Worker, b: Worker):
    (x,) = await c.scatter([1], workers=[a.address])
    x2 = c.submit(inc, x, key="x2", workers=[a.address])
    await wait(x2)
    a.handle_stimulus(FreeKeysEvent(keys=["x2"], stimulus_id="vanished"))
    y = c.submit(inc, x2, key="y", workers=[b.address])
    assert await y == 3


@gen_cluster(client=True, nthreads=two)
async def test_a_busy_peer_is_asked_again(c: Client, s: Scheduler, a: Worker, b: Worker):
    a.transfer_outgoing_count_limit = 0
    x = c.submit(inc, 1, key="x", workers=[a.address])
    y = c.submit(inc, x, key="y", workers=[b.address])
    await async_poll_for(lambda: a.address in b.state.busy_workers, timeout=5)
    a.transfer_outgoing_count_limit = 10
    assert await y == 3


@gen_cluster(client=True, nthreads=two)
async def test_a_frozen_fetcher(c: Client, s: Scheduler, a: Worker, b: Worker):
    with freeze_data_fetching(b, jump_start=True):
        x = c.submit(inc, 1, key="x", workers=[a.address])
        y = c.submit(inc, x, key="y", workers=[b.address])
        await wait_for_state("x", "fetch", b)
    assert await y == 3


async def give_up(worker, *futures):
    """Dask leaves the dependent of such a value waiting for ever."""
    for future in futures:
        future.release()
    await async_poll_for(lambda: not worker.state.tasks, timeout=5)


class BreaksOnArrival:
    def __getstate__(self):
        return {"a": 1}

    def __setstate__(self, state):
        raise ValueError("broken on arrival")


@gen_cluster(client=True, nthreads=two)
async def test_a_value_that_does_not_arrive_whole(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(BreaksOnArrival, key="x", workers=[a.address])
    y = c.submit(id, x, key="y", workers=[b.address])
    await wait_for_state("x", "error", b)
    assert "broken on arrival" in b.state.tasks["x"].exception_text
    await give_up(b, y, x)
    assert await c.submit(inc, 1, key="z", workers=[b.address]) == 2


class BreaksOnDeparture:
    def __reduce__(self):
        raise TypeError("does not travel")


@gen_cluster(client=True, nthreads=two)
async def test_a_value_that_can_not_leave(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(BreaksOnDeparture, key="x", workers=[a.address])
    y = c.submit(id, x, key="y", workers=[b.address])
    await wait_for_state("x", "error", b)
    await give_up(b, y, x)
    assert await c.submit(inc, 1, key="z", workers=[a.address]) == 2


@gen_cluster(client=True, nthreads=two)
async def test_close_while_executing(c: Client, s: Scheduler, a: Worker, b: Worker):
    async with BlockedExecute(s.address) as w:
        x = c.submit(inc, 1, key="x", workers=[w.address], allow_other_workers=True)
        await w.in_execute.wait()
        closing = asyncio.create_task(w.close())
        w.block_execute.set()
        w.block_execute_exit.set()
        await closing
        assert await x == 2


@gen_cluster(client=True, nthreads=two)
async def test_a_broken_stream_to_the_scheduler(c: Client, s: Scheduler, a: Worker, b: Worker):
    x = c.submit(slowinc, 1, delay=0.2, key="x", workers=[a.address], allow_other_workers=True)
    await wait_for_state("x", "executing", a)
    s.stream_comms[a.address].abort()
    assert await x == 2
    await async_poll_for(lambda: a.address not in s.workers, timeout=5)


@gen_cluster(client=True, nthreads=two)
async def test_retire_moves_the_data(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [c.submit(inc, i, key=f"x-{i}", workers=[a.address], allow_other_workers=True) for i in range(5)]
    await wait(xs)
    await c.retire_workers([a.address])
    assert set(b.data) == {f"x-{i}" for i in range(5)}
    assert await c.gather(xs) == [1, 2, 3, 4, 5]


@gen_cluster(client=True, nthreads=two)
async def test_retire_while_it_computes(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = [
        c.submit(slowinc, i, delay=0.05, key=f"x-{i}", workers=[a.address], allow_other_workers=True) for i in range(6)
    ]
    await wait(xs[:1])
    await c.retire_workers([a.address])
    assert await c.gather(xs) == [1, 2, 3, 4, 5, 6]


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_late_worker_takes_the_waiting_work(c: Client, s: Scheduler, a: Worker):
    await a.close()
    x = c.submit(inc, 1, key="x")
    await async_poll_for(lambda: "x" in s.tasks and s.tasks["x"].state in ("no-worker", "queued"), timeout=5)
    async with Worker(s.address):
        assert await x == 2


@gen_cluster(client=True, nthreads=two)
async def test_submit_onto_a_worker_that_is_gone(c: Client, s: Scheduler, a: Worker, b: Worker):
    address = a.address
    await a.close()
    x = c.submit(inc, 1, key="x", workers=[address], allow_other_workers=True)
    assert await x == 2


@gen_cluster(client=True, nthreads=two)
async def test_get_data_of_a_closed_worker(c: Client, s: Scheduler, a: Worker, b: Worker):
    address = a.address
    await a.close()
    with pytest.raises((OSError, CommClosedError)):
        await asyncio.wait_for(b.rpc(address).get_data(keys=["x"], who=b.address), 10)


def exits_once(flag):
    if not Path(flag).exists():
        Path(flag).touch()
        os._exit(1)
    return "survived"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], Worker=Nanny, timeout=120)
async def test_a_killed_process_comes_back(c: Client, s: Scheduler, a: Nanny, tmp_path):
    x = c.submit(exits_once, str(tmp_path / "flag"), key="x")
    assert await x == "survived"


def always_exits():
    os._exit(1)


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)],
    Worker=Nanny,
    timeout=120,
    config={"distributed.scheduler.allowed-failures": 0},
)
async def test_a_task_that_kills_is_blamed(c: Client, s: Scheduler, a: Nanny):
    with captured_logger("distributed.scheduler"):
        x = c.submit(always_exits, key="x")
        with pytest.raises(KilledWorker):
            await x


@gen_cluster(client=True, nthreads=two, Worker=Nanny, timeout=120)
async def test_kill_one_of_two_processes(c: Client, s: Scheduler, a: Nanny, b: Nanny):
    xs = c.map(slowinc, range(8), delay=0.05)
    total = c.submit(sum, xs)
    await wait(xs[:2])
    await a.kill()
    assert await total == 36


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], Worker=Nanny, timeout=120)
async def test_restart_of_processes(c: Client, s: Scheduler, a: Nanny):
    x = c.submit(inc, 1, key="x")
    await wait(x)
    await c.restart()
    assert x.cancelled()
    assert await c.submit(inc, 2, key="y") == 3
    assert a.status == Status.running


@gen_cluster(client=True, nthreads=two)
async def test_an_event_outlives_its_setter(c: Client, s: Scheduler, a: Worker, b: Worker):
    entered, go = Event(), Event()

    def block(entered, go):
        entered.set()
        go.wait()
        return 1

    x = c.submit(block, entered, go, key="x", workers=[b.address])
    await entered.wait()
    await a.close()
    await go.set()
    assert await x == 1
