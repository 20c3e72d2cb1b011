"""Tasks that leave their thread pool: how long they wait to rejoin it, and where the graphs stand that they submit."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import dask
import pytest
from distributed import Worker, get_client, rejoin, secede, worker_client
from distributed.utils_test import gen_cluster, inc

from otel_worker import names
from tests.desk import SECOND, Desk, ns

if TYPE_CHECKING:
    from distributed import Client, Scheduler

    from otel_worker.traces import Span
    from tests.live import Live

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
WAIT = 0.2  # seconds that another task keeps the one thread
NEAR = 0.05

taken, left = threading.Event(), threading.Event()
waits: list[float] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    taken.clear()
    left.clear()
    waits.clear()


def leaves_and_rejoins() -> None:
    secede()
    left.set()
    assert taken.wait(30)
    began = time.perf_counter()
    rejoin()
    waits.append(time.perf_counter() - began)


def keeps_the_thread() -> None:
    taken.set()
    time.sleep(WAIT)


async def compete(c: Client) -> None:
    """One task leaves the one thread of its worker, another takes it, and the first wants it back."""
    x = c.submit(leaves_and_rejoins, key="leaves-1")
    await asyncio.to_thread(left.wait, 30)
    await c.gather([x, c.submit(keeps_the_thread, key="keeps-1")])


def one(live: Live, name: str, prefix: str) -> Span:
    (found,) = [s for s in live.spans() if s.name == name and s.attributes["dask.task.prefix"] == prefix]
    return found


def assert_waited(live: Live) -> None:
    live.check()
    run, execute = one(live, "run", "leaves"), one(live, "execute", "leaves")
    assert waits[0] >= WAIT / 2
    assert run.attributes["dask.run.rejoining"] == pytest.approx(waits[0], abs=NEAR)
    assert execute.attributes["dask.execute.run.rejoin"] == pytest.approx(waits[0], abs=NEAR)
    assert run.attributes["dask.run.seceded"] >= waits[0] - NEAR
    assert "dask.run.rejoining" not in one(live, "run", "keeps").attributes


def test_the_wait_to_rejoin(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        await compete(c)

    scenario()
    assert_waited(live)


def test_the_wait_to_rejoin_a_pool_that_was_there_before_us(live: Live):
    live.switch.off()

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        assert await c.submit(inc, 1) == 2
        live.switch.on()
        await asyncio.sleep(0.1)
        await compete(c)

    scenario()
    assert_waited(live)


def test_rejoining_while_we_go(live: Live):
    """Dask's own thread wakes up, whatever we were switched to meanwhile."""

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        x = c.submit(leaves_and_rejoins, key="leaves-1")
        await asyncio.to_thread(left.wait, 30)
        y = c.submit(keeps_the_thread, key="keeps-1")
        await asyncio.to_thread(taken.wait, 30)
        live.switch.off()
        await c.gather([x, y])
        await c.submit(leaves_and_rejoins, key="leaves-2")

    scenario()
    assert len(waits) == 2


def computes() -> Any:
    """As people write it: a collection's own `compute`, within a task."""
    return dask.delayed(inc, pure=True)(1, dask_key_name="inner-1").compute()


def with_a_client() -> Any:
    with worker_client() as client:
        return client.submit(inc, 1, key="inner-1").result()


def with_the_workers_client() -> Any:
    client = get_client()
    secede()
    result = client.submit(inc, 1, key="inner-1").result()
    rejoin()
    return result


@pytest.mark.parametrize("how", [computes, with_a_client, with_the_workers_client])
def test_what_a_task_submits_hangs_below_its_run(live: Live, how: Any):
    live.again(min_phase=10.0)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker):
        assert await c.submit(how, key="outer-1") == 2

    scenario()
    live.check()
    assert [line for line in live.tree("compute outer") if "get_data" not in line] == [
        "compute outer",
        "  submit",
        "  task outer",
        "    execute",
        "      run",
        "        compute inner",
        "          submit",
        "          task inner",
        "            execute",
        "              run",
    ]
    assert one(live, "run", "outer").attributes["dask.run.seceded"] > 0


def test_the_parts_of_an_execution_that_rejoined_its_pool():
    desk = Desk()
    desk.move(0, **{"t-1": "executing"})
    task = desk.recorder.tasks["t-1"]
    task.loading, task.submitted, task.run_begun, task.run_cpu = ns(0), ns(0), ns(0), SECOND
    task.rejoins = [ns(3), ns(5), ns(6)]  # the second time it had not rejoined when its function was over
    task.run_ended = task.taken = ns(7)
    assert task.rejoining() == 3 * SECOND
    desk.move(7, **{"t-1": "memory"})
    parts = {name: part / SECOND for name, part in (task.execute_parts or {}).items() if part}
    assert parts == {names.RUN_CPU: 1, names.RUN_REJOIN: 3, names.RUN_NONCPU: 3}
