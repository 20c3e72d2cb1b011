"""What we hold is bounded: by the tasks that live, not by those that went, nor by how deep they submit each other."""

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker, worker_client
from distributed.utils_test import gen_cluster
from opentelemetry import propagate

import otel_worker
from otel_worker.standin import StandIn
from tests.desk import Desk
from tests.live import Live

LIVE, BATCH = 10_000, 100
DEPTH = 30
OURS = str(Path(otel_worker.__file__).parent / "*")


def allocated() -> int:
    """Bytes that live now and were allocated by a line of ours."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern=OURS)])
    return sum(one.size for one in snapshot.statistics("filename"))


@pytest.mark.parametrize("dependencies", [0, 4])
def test_a_live_task_takes_less_than_a_kibibyte(dependencies: int):
    """Of what Dask holds for it nothing is counted; each key that it waits for is wanted by a hundred others."""
    desk = Desk()
    wanted = [f"dep-{i}" for i in range(100)]
    desk.move(0, **dict.fromkeys(wanted, "fetch"))
    keys = [f"live-{i}" for i in range(LIVE)]
    for i, key in enumerate(keys):
        desk.view(key).waiting_for_data = {desk.view(wanted[(i + d) % 100]) for d in range(dependencies)}
    tracemalloc.start()
    try:
        before = allocated()
        for at in range(0, LIVE, BATCH):  # as they come from the scheduler
            desk.move(1 + at, **dict.fromkeys(keys[at : at + BATCH], "waiting" if dependencies else "ready"))
        each = (allocated() - before) / LIVE
    finally:
        tracemalloc.stop()
    assert len(desk.recorder.tasks) == LIVE
    assert 100 < each < 1024
    desk.move(2 * LIVE, **dict.fromkeys([*keys, *wanted], "released"))
    assert not any(desk.recorder.sizes().values())


def step(depth: int) -> Any:
    """Submit the next one and wait for it; the last tells how large its context is, and how many of ours live."""
    if depth:
        with worker_client() as client:  # it secedes: as many threads as it is deep
            return client.submit(step, depth - 1, key=f"step-{depth - 1}").result()
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    gc.collect()
    return len(str(carrier)), sum(isinstance(one, StandIn) for one in gc.get_objects())


@pytest.mark.parametrize("budget", [0, 10**6])
def test_tasks_that_submit_tasks_do_not_carry_their_ancestors(live: Live, budget: int):
    live.again(span_budget=0, span_burst=budget)
    told: list[tuple[int, int]] = []

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], timeout=120)
    async def scenario(c: Client, s: Scheduler, w: Worker):
        told.append(await c.submit(step, 2, key="shallow"))
        told.append(await c.submit(step, DEPTH, key="deep"))

    scenario()
    (shallow, few), (deep, many) = told
    assert deep == shallow
    assert many - few <= DEPTH  # those that wait, each its own
