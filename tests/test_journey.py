"""The two journeys of a task on a real cluster, as trees of text: each span once, in its place."""

import numpy as np
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster

from tests.live import Live

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1)])


def ones(n: int) -> np.ndarray:
    return np.ones(n)


def total(*arrays: np.ndarray) -> float:
    return float(sum(a.sum() for a in arrays))


def test_a_fetch_stands_below_the_task_that_waits_for_it(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(ones, 10, key="ones-1", workers=[a.address])
        y = c.submit(total, x, key="total-1", workers=[b.address])
        assert await y == 10

    scenario()
    assert live.tree("compute total") == [
        "compute total",
        "  submit",
        "  task total",
        "    waiting",
        "      fetch total",
        "        fetch.queued",
        "        connect",
        "          connect.pool",
        "          connect.dial",
        "          connect.handshake",
        "        request",
        "          get_data",
        "            get_data.serialize",
        "            get_data.send",
        "        fetch.deserialize",
        "    execute",
        "      run",
    ]
    live.check()
