"""What comes before a task exists on the worker, and what blocks its event loop."""

import time

import pytest
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster

from otel_worker import names
from tests.live import Live

# gen_cluster's own configuration ticks twice a second only; Dask's default is 20 ms.
cluster = gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1)],
    config={"distributed.admin.tick.interval": "20ms"},
)


class SlowToUnpickle:
    """A callable, the unpickling of which takes a while: as an import of its module would."""

    def __init__(self, delay: float) -> None:
        self.delay = delay

    def __reduce__(self):
        return unpickle_slowly, (self.delay,)

    def __call__(self, i: int) -> int:
        return i


TOOK: list[float] = []  # seconds of each slow unpickling, as it measured itself


def unpickle_slowly(delay: float) -> SlowToUnpickle:
    began = time.perf_counter()
    time.sleep(delay)
    TOOK.append(time.perf_counter() - began)
    return SlowToUnpickle(delay)


@pytest.mark.faults
@pytest.mark.parametrize("delay", [0.3, 0.6])
def test_unpickling_a_function_is_arrival(live: Live, delay: float):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await c.submit(int, 1, key="warm-1", workers=[a.address])  # what decoding imports the first time
        TOOK.clear()
        assert await c.submit(SlowToUnpickle(delay), 1, key="slow-1", workers=[a.address]) == 1

    scenario()
    took = TOOK[-1]  # the scheduler's came before
    task = live.find("task slow", "slow-1")
    assert task.attributes[names.ARRIVAL] == pytest.approx(took, abs=max(0.1 * took, 0.05))
    assert task.duration / 1e9 < delay
    spans = [s for s in live.spans() if s.name == names.LOOP_BLOCKED and s.attributes[names.LOOP_CAUSE] == "arrival"]
    assert max(s.duration for s in spans) / 1e9 == pytest.approx(took, abs=max(0.1 * took, 0.05))
    live.check()


async def block_the_loop(delay: float) -> None:
    time.sleep(delay)  # noqa: ASYNC251


@pytest.mark.faults
def test_a_blocked_loop_names_the_task_that_blocked_it(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await c.submit(block_the_loop, 0.0, key="warm-1", workers=[a.address])  # what is imported the first time
        await c.submit(block_the_loop, 0.5, key="culprit-1", workers=[a.address])

    scenario()
    # Both workers share the loop; only the one that ran the task can name it.
    where = live.find("task culprit").attributes[names.WORKER_ADDRESS]
    spans = [s for s in live.spans() if s.name == names.LOOP_BLOCKED and s.attributes[names.WORKER_ADDRESS] == where]
    # Others may be there: a first import blocks a loop, too.
    [blocked] = [s for s in spans if s.attributes.get(names.LOOP_BLOCKED_BY) == "culprit-1"]
    assert blocked.attributes[names.LOOP_CAUSE] == "async_task"
    assert blocked.duration / 1e9 == pytest.approx(0.5, abs=0.05)
    live.check()
