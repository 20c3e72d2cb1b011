"""Tasks that are given up, and wanted again, in every phase of their life on a worker."""

import asyncio

import pytest
from distributed import Client, Event, Lock, Scheduler, Worker, wait
from distributed.utils import CancelledError
from distributed.utils_test import (
    BlockedExecute,
    BlockedGatherDep,
    BlockedGetData,
    async_poll_for,
    gen_cluster,
    inc,
    lock_inc,
    slowinc,
    wait_for_state,
    wait_for_stimulus,
)
from distributed.worker_state_machine import (
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    FreeKeysEvent,
    GatherDepFailureEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
    RescheduleEvent,
    SecedeEvent,
)


def block(entered, go, x=1):
    entered.set()
    go.wait()
    return x


def block_and_fail(entered, go):
    entered.set()
    go.wait()
    raise ValueError("late")


async def gone(worker, key):
    await async_poll_for(lambda: key not in worker.state.tasks, timeout=5)


# --- executing -------------------------------------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancel_while_executing(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(block, entered, go, key="x")
    await entered.wait()
    await x.cancel()
    await wait_for_state("x", "cancelled", a)
    await go.set()
    await gone(a, "x")
    assert "x" not in a.data
    assert x.status == "cancelled"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancel_while_executing_and_it_fails(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(block_and_fail, entered, go, key="x")
    await entered.wait()
    await x.cancel()
    await wait_for_state("x", "cancelled", a)
    await go.set()
    await gone(a, "x")
    assert await c.submit(inc, 1, key="y") == 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancelled_and_submitted_again(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(block, entered, go, 5, key="x")
    await entered.wait()
    x.release()
    await wait_for_state("x", "cancelled", a)
    x = c.submit(block, entered, go, 5, key="x")
    await wait_for_state("x", "executing", a)
    await go.set()
    assert await x == 5


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancel_while_ready(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(block, entered, go, key="x")
    await entered.wait()
    y = c.submit(inc, 1, key="y")
    await wait_for_state("y", "ready", a)
    await y.cancel()
    await gone(a, "y")
    await go.set()
    assert await x == 1
    assert a.state.executed_count == 1


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2, {"resources": {"R": 1}})])
async def test_cancel_while_constrained(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(block, entered, go, key="x", resources={"R": 1})
    await entered.wait()
    y = c.submit(inc, 1, key="y", resources={"R": 1})
    await wait_for_state("y", "constrained", a)
    await y.cancel()
    await gone(a, "y")
    await go.set()
    assert await x == 1
    assert a.state.available_resources == {"R": 1}


def secede_and_block(entered, go):
    from distributed import secede

    secede()
    entered.set()
    go.wait()
    return 7


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancel_while_long_running(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(secede_and_block, entered, go, key="x")
    await entered.wait()
    await wait_for_state("x", "long-running", a)
    await x.cancel()
    await wait_for_state("x", "cancelled", a)
    assert await c.submit(inc, 1, key="y") == 2
    await go.set()
    await gone(a, "x")
    assert not a.state.long_running


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_long_running_cancelled_and_submitted_again(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(secede_and_block, entered, go, key="x")
    await wait_for_state("x", "long-running", a)
    x.release()
    await wait_for_state("x", "cancelled", a)
    x = c.submit(secede_and_block, entered, go, key="x")
    await wait_for_state("x", "long-running", a)
    await go.set()
    assert await x == 7


async def async_block(started):
    await started.set()
    await asyncio.sleep(60)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_an_async_task_is_really_cancelled(c: Client, s: Scheduler, a: Worker):
    started = Event()
    x = c.submit(async_block, started, key="x")
    await started.wait()
    await x.cancel()
    with pytest.raises(CancelledError):
        await x


@pytest.mark.parametrize("how", ["success", "failure", "reschedule"])
@gen_cluster(client=True, nthreads=[])
async def test_executing_cancelled_by_hand(c: Client, s: Scheduler, how: str):
    function = {"success": inc, "failure": fails, "reschedule": reschedules}[how]
    async with BlockedExecute(s.address, validate=True) as w:
        x = c.submit(function, 1, key="x")
        await w.in_execute.wait()
        w.handle_stimulus(FreeKeysEvent(keys=["x"], stimulus_id="free"))
        assert w.state.tasks["x"].state == "cancelled"
        w.block_execute.set()
        w.block_execute_exit.set()
        kind = {"success": ExecuteSuccessEvent, "failure": ExecuteFailureEvent, "reschedule": RescheduleEvent}[how]
        ev = await wait_for_stimulus(kind, w)
        assert ev.key == "x"
        await gone(w, "x")
        del x


def fails(x):
    raise ZeroDivisionError(x)


def reschedules(x):
    from distributed import Reschedule

    raise Reschedule


@gen_cluster(client=True, nthreads=[])
async def test_cancelled_before_its_thread_began(c: Client, s: Scheduler):
    async with BlockedExecute(s.address, validate=True) as w:
        x = c.submit(inc, 1, key="x")
        await w.in_execute.wait()
        await x.cancel()
        await wait_for_state("x", "cancelled", w)
        w.block_execute.set()
        w.block_execute_exit.set()
        await gone(w, "x")
        assert await c.submit(inc, 2, key="y") == 3


@gen_cluster(client=True, nthreads=[])
async def test_cancelled_after_its_thread_ended(c: Client, s: Scheduler):
    async with BlockedExecute(s.address, validate=True) as w:
        w.block_execute.set()
        x = c.submit(inc, 1, key="x")
        await w.in_execute_exit.wait()
        await x.cancel()
        await wait_for_state("x", "cancelled", w)
        w.block_execute_exit.set()
        await gone(w, "x")


@gen_cluster(client=True, nthreads=[])
async def test_resumed_after_its_thread_ended(c: Client, s: Scheduler):
    async with BlockedExecute(s.address, validate=True) as w:
        w.block_execute.set()
        x = c.submit(inc, 1, key="x")
        await w.in_execute_exit.wait()
        x.release()
        await wait_for_state("x", "cancelled", w)
        x = c.submit(inc, 1, key="x")
        await wait_for_state("x", "executing", w)
        w.block_execute_exit.set()
        assert await x == 2


def secede_and_return(x):
    from distributed import secede

    secede()
    return x


@gen_cluster(client=True, nthreads=[])
async def test_seceding_while_cancelled(c: Client, s: Scheduler):
    async with BlockedExecute(s.address, validate=True) as w:
        x = c.submit(secede_and_return, 1, key="x")
        await w.in_execute.wait()
        await x.cancel()
        await wait_for_state("x", "cancelled", w)
        w.block_execute.set()
        await wait_for_stimulus(SecedeEvent, w)
        assert w.state.tasks["x"].previous == "long-running"
        w.block_execute_exit.set()
        await gone(w, "x")


# --- in flight -----------------------------------------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancel_while_in_flight(c: Client, s: Scheduler, a: Worker):
    async with BlockedGatherDep(s.address, validate=True) as b:
        x = c.submit(inc, 1, key="x", workers=[a.address])
        y = c.submit(inc, x, key="y", workers=[b.address])
        await b.in_gather_dep.wait()
        await y.cancel()
        await wait_for_state("x", "cancelled", b)
        b.block_gather_dep.set()
        await wait_for_stimulus(GatherDepSuccessEvent, b)
        await gone(b, "x")
        assert not b.data
        assert await x == 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancelled_in_flight_and_wanted_again(c: Client, s: Scheduler, a: Worker):
    async with BlockedGatherDep(s.address, validate=True) as b:
        x = c.submit(inc, 1, key="x", workers=[a.address])
        y = c.submit(inc, x, key="y", workers=[b.address])
        await b.in_gather_dep.wait()
        await y.cancel()
        await wait_for_state("x", "cancelled", b)
        z = c.submit(inc, x, key="z", workers=[b.address])
        await wait_for_state("x", "flight", b)
        b.block_gather_dep.set()
        assert await z == 3
        assert b.state.transfer_incoming_count_total == 1


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_in_flight_and_then_to_be_computed_here(c: Client, s: Scheduler, a: Worker):
    async with BlockedGatherDep(s.address, validate=True) as b:
        x = c.submit(inc, 1, key="x", workers=[a.address], allow_other_workers=True)
        y = c.submit(inc, x, key="y", workers=[b.address])
        await b.in_gather_dep.wait()
        await a.close()
        await wait_for_state("x", "resumed", b)
        b.block_gather_dep.set()
        assert await y == 3
        await wait_for_stimulus(GatherDepNetworkFailureEvent, b)


@gen_cluster(client=True, nthreads=[])
async def test_the_peer_is_lost_while_cancelled_in_flight(c: Client, s: Scheduler):
    async with BlockedGetData(s.address) as a, Worker(s.address, validate=True) as b:
        x = c.submit(inc, 1, key="x", workers=[a.address])
        y = c.submit(inc, x, key="y", workers=[b.address])
        await a.in_get_data.wait()
        await y.cancel()
        await wait_for_state("x", "cancelled", b)
        x.release()
        await a.close()
        a.block_get_data.set()
        await gone(b, "x")
        assert await c.submit(inc, 5, key="w") == 6


@gen_cluster(client=True, nthreads=[])
async def test_the_reply_comes_while_cancelled(c: Client, s: Scheduler):
    async with BlockedGetData(s.address) as a, Worker(s.address, validate=True) as b:
        x = c.submit(inc, 1, key="x", workers=[a.address])
        y = c.submit(inc, x, key="y", workers=[b.address])
        await a.in_get_data.wait()
        await y.cancel()
        await wait_for_state("x", "cancelled", b)
        a.block_get_data.set()
        await gone(b, "x")


class BreaksOnArrival:
    def __getstate__(self):
        return {"a": 1}

    def __setstate__(self, state):
        raise ValueError("broken on arrival")


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_deserializing_fails_while_cancelled(c: Client, s: Scheduler, a: Worker):
    async with BlockedGatherDep(s.address, validate=True) as b:
        x = c.submit(BreaksOnArrival, key="x", workers=[a.address])
        y = c.submit(id, x, key="y", workers=[b.address])
        await b.in_gather_dep.wait()
        await y.cancel()
        await wait_for_state("x", "cancelled", b)
        b.block_gather_dep.set()
        await wait_for_stimulus(GatherDepFailureEvent, b)
        await gone(b, "x")


# --- fetch, waiting, missing -------------------------------------------------------------------------------------------


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancel_while_a_key_is_queued(c: Client, s: Scheduler, a: Worker):
    async with BlockedGatherDep(s.address, validate=True) as b:
        x1 = c.submit(inc, 1, key="x1", workers=[a.address])
        x2 = c.submit(inc, 2, key="x2", workers=[a.address])
        await wait([x1, x2])
        y1 = c.submit(inc, x1, key="y1", workers=[b.address])
        await b.in_gather_dep.wait()
        y2 = c.submit(inc, x2, key="y2", workers=[b.address])
        await wait_for_state("x2", "fetch", b)
        await y2.cancel()
        await gone(b, "x2")
        b.block_gather_dep.set()
        assert await y1 == 3


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_cancel_the_waiting_dependent_of_a_running_task(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(block, entered, go, key="x")
    y = c.submit(inc, x, key="y")
    await entered.wait()
    await y.cancel()
    await go.set()
    assert await x == 1
    await async_poll_for(lambda: "y" not in s.tasks, timeout=5)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_cancel_hundreds_at_once(c: Client, s: Scheduler, a: Worker, b: Worker):
    xs = c.map(slowinc, range(200), delay=0.005, key=[f"x-{i}" for i in range(200)])
    ys = c.map(inc, xs, key=[f"y-{i}" for i in range(200)])
    await wait(xs[:5])
    await c.cancel(ys)
    await c.cancel(xs)
    await async_poll_for(lambda: not s.tasks and not a.state.tasks and not b.state.tasks, timeout=5)
    assert await c.submit(inc, 1, key="after") == 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2)
async def test_cancel_and_submit_over_and_over(c: Client, s: Scheduler, a: Worker, b: Worker):
    for i in range(10):
        xs = [c.submit(slowinc, j, delay=0.01, key=f"x-{j}") for j in range(10)]
        total = c.submit(sum, xs, key="sum")
        if i % 3 == 0:
            await asyncio.sleep(0.02)
        if i < 9:
            for future in (total, *xs):
                future.release()
    assert await total == sum(range(1, 11))


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_lock_is_not_lost_with_the_future(c: Client, s: Scheduler, a: Worker):
    lock = Lock()
    async with lock:
        x = c.submit(lock_inc, 1, lock=lock, key="x")
        await wait_for_state("x", "executing", a)
        x.release()
        await wait_for_state("x", "cancelled", a)
        x = c.submit(lock_inc, 1, lock=lock, key="x")
    assert await x == 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_worker_closes_while_cancelled(c: Client, s: Scheduler, a: Worker):
    entered, go = Event(), Event()
    x = c.submit(block, entered, go, key="x")
    await entered.wait()
    await x.cancel()
    await wait_for_state("x", "cancelled", a)
    await go.set()
    await a.close()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_worker_closes_with_requests_in_flight(c: Client, s: Scheduler, a: Worker):
    async with BlockedGatherDep(s.address, validate=True) as b:
        x = c.submit(inc, 1, key="x", workers=[a.address])
        y = c.submit(inc, x, key="y", workers=[b.address], allow_other_workers=True)
        await b.in_gather_dep.wait()
    assert await y == 3
