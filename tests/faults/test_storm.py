"""Everything at once: whatever goes wrong, the trace is sound and nothing is kept of what is over."""

import asyncio
import random
import time
from contextlib import suppress

import pytest
from distributed import Client, Future, Scheduler, Worker, wait
from distributed.client import FuturesCancelledError

from tests.faults.proxy import Fault, Proxy, behind_a_proxy
from tests.faults.tools import MEGABYTE, SPILLS, Slow, calm, cluster, stop, until
from tests.live import Live

pytestmark = pytest.mark.faults

OPTIONS = {"memory_limit": 10 * MEGABYTE}


def make(i: int, *_: object) -> Slow:
    time.sleep(0.01 * (i % 4))
    return Slow(f"v{i}", pickling=0.001, unpickling=0.001, claims=(i % 5) * MEGABYTE // 2)


def fail(*_: object) -> None:
    raise ValueError("it had to be")


def layers(c: Client, chance: random.Random) -> list[Future]:
    """Five layers of tasks, each of which needs some of the layer before; some fail."""
    before: list[Future] = []
    made: list[Future] = []
    for layer in range(5):
        now = []
        for i in range(3):
            needs = chance.sample(before, min(len(before), chance.randint(0, 4)))
            function = fail if layer > 2 and chance.random() < 0.08 else make
            arguments = needs if function is fail else [i, *needs]
            priority = chance.randint(0, 2)
            now.append(c.submit(function, *arguments, key=f"layer{layer}-{i}", priority=priority, retries=0))
        before = now
        made += now
    return made


async def trouble(
    c: Client, workers: list[Worker], proxies: list[Proxy], futures: list[Future], chance: random.Random
) -> None:
    for _ in range(25):
        await asyncio.sleep(0.02)
        what = chance.choice(["cut", "delay", "busy", "cancel", "hang up", "block"])
        worker, proxy = chance.choice(list(zip(workers, proxies, strict=True)))
        if what == "cut":
            proxy.arm(Fault("cut", after=chance.randint(0, 300), cut=True))
        elif what == "delay":
            proxy.arm(Fault("delay", 0.05, after=chance.randint(0, 300), reply=chance.random() < 0.7))
        elif what == "hang up":
            proxy.hang_up()
        elif what == "busy":
            worker.transfer_outgoing_count_limit = chance.choice([0, 50])
        elif what == "cancel":
            await c.cancel(chance.sample(futures, 3))
        else:
            stop(0.03)
    for worker, proxy in zip(workers, proxies, strict=True):
        worker.transfer_outgoing_count_limit = 50
        proxy.faults.clear()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_goes_wrong(live: Live, seed: int):
    chance = random.Random(seed)

    @cluster(1, SPILLS, worker_kwargs=OPTIONS, timeout=30)
    async def scenario(c: Client, s: Scheduler, a: Worker):
        async with (
            behind_a_proxy(s, name="b", nthreads=2, **OPTIONS) as (b, before_b),
            behind_a_proxy(s, name="d", nthreads=2, **OPTIONS) as (d, before_d),
        ):
            futures = layers(c, chance)
            await trouble(c, [b, d], [before_b, before_d], futures, chance)
            with suppress(FuturesCancelledError):
                await wait(futures)
            await c.cancel(futures)
            await until(lambda: not any(w.state.tasks for w in (a, b, d)))
            await calm()
            for sizes in live.sizes():
                assert not any(sizes.values()), sizes

    scenario()
    live.check()
