"""Where a task's function runs: in a thread, on the event loop, or in a process of a pool, which no hook reaches."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import dask
import pytest
from distributed.utils_test import gen_cluster

from otel_worker import names
from tests.desk import SECOND, Desk, ns

if TYPE_CHECKING:
    from distributed import Client, Scheduler, Worker

    from otel_worker.traces import Span
    from tests.live import Live


def works(seconds: float) -> tuple[int, float]:
    began = time.perf_counter()
    time.sleep(seconds)
    return os.getpid(), time.perf_counter() - began


async def waits() -> int:
    return 1


def one(live: Live, name: str, prefix: str) -> Span:
    (found,) = [s for s in live.spans() if s.name == name and s.attributes["dask.task.prefix"] == prefix]
    return found


def test_a_function_in_a_process_pool_is_one_marked_span(live: Live):
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 2)])
    async def scenario(c: Client, s: Scheduler, a: Worker):
        pool = a.executors["pool"] = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        await asyncio.wrap_future(pool.submit(os.getpid))
        with dask.annotate(executor="pool"):
            far = c.submit(works, 0.2, key="far-1")
        near = c.submit(works, 0.2, key="near-1")
        told.update(far=await far, near=await near)
        assert await c.submit(waits, key="waits-1") == 1

    told: dict[str, tuple[int, float]] = {}
    scenario()
    live.check()
    assert told["far"][0] != os.getpid() == told["near"][0]
    assert live.tree("task far") == ["task far (parent not in the data)", "  execute", "    run"]
    far, near, waited = (one(live, "run", prefix) for prefix in ("far", "near", "waits"))
    assert [span.attributes["dask.run.kind"] for span in (far, near, waited)] == ["process", "thread", "async_task"]
    assert far.duration / 1e9 == pytest.approx(told["far"][1], abs=0.1)
    assert far.attributes["dask.executor"] == "pool"
    assert "dask.run.thread_cpu" in near.attributes
    for span in (far, waited):
        assert not {"dask.run.thread_cpu", "dask.run.thread_noncpu"} & set(span.attributes)
    execute = one(live, "execute", "far").attributes
    assert execute["dask.execute.run.process"] == pytest.approx(far.duration / 1e9, abs=1e-5)
    assert "dask.execute.run.noncpu" not in execute


def test_the_parts_of_an_execution_in_a_process():
    desk = Desk()
    desk.move(0, **{"t-1": "executing"})
    task = desk.recorder.tasks["t-1"]
    task.executor = "process"
    task.loading, task.submitted, task.run_begun, task.run_ended, task.taken = ns(0), ns(1), ns(3), ns(7), ns(8)
    desk.move(9, **{"t-1": "memory"})
    assert {name: part / SECOND for name, part in (task.execute_parts or {}).items()} == {
        names.LOAD: 1,
        names.RUN_QUEUE: 2,
        names.RUN_PROCESS: 4,
        names.LOOP: 1,
        names.STORE: 1,
    }
    assert not desk.recorder.runs  # it has no part in what the event loop of this process does
