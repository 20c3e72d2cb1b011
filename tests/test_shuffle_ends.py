"""Shuffles and calls of actors that are given up in their middle: each span ends once, and nothing of ours is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import dask.array as da
import pytest
from distributed.shuffle._core import ShuffleRun
from distributed.utils_test import gen_cluster

from tests.test_shuffle import EVERYTHING, of

if TYPE_CHECKING:
    from distributed import Client, Scheduler, Worker

    from tests.live import Live

cluster = gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1)] * 2, config={"distributed.scheduler.allowed-failures": 5}
)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Batches that arrive wait until the event is set."""
    plain = ShuffleRun.receive
    go = asyncio.Event()

    async def receive(self: Any, data: Any) -> Any:
        await go.wait()
        return await plain(self, data)

    monkeypatch.setattr(ShuffleRun, "receive", receive)
    return go


def shuffled() -> Any:
    return da.ones((40, 40), chunks=(5, 40)).rechunk((40, 5), method="p2p", block_size_limit=1600).sum()


async def under_way(live: Live) -> None:
    """Until a batch has arrived that waits."""
    while not any(record.kind == "shuffle_receive" for record in live.runtime.shuffles.open):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def assert_nothing_is_left(live: Live) -> None:
    live.check()
    assert live.runtime.shuffles.open == set()
    assert live.runtime.actors.open == set()
    assert not any(any(sizes.values()) for sizes in live.sizes())
    ids = [span.span_id for span in live.spans()]
    assert len(ids) == len(set(ids))
    sends, receives = of(live, "shuffle.send"), of(live, "shuffle_receive")
    assert {span.parent_id for span in receives} <= {span.span_id for span in sends}
    assert sends


def test_cancelled(live: Live, slow: asyncio.Event):
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        total = c.compute(shuffled())
        await under_way(live)
        await total.cancel()
        await asyncio.sleep(0.1)
        slow.set()

    scenario()
    assert_nothing_is_left(live)


def test_a_worker_leaves(live: Live, slow: asyncio.Event):
    """Dask begins the shuffle again."""
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        total = c.compute(shuffled())
        await under_way(live)
        closing = asyncio.create_task(b.close())
        await asyncio.sleep(0.1)
        slow.set()
        await closing
        assert await total == 1600

    scenario()
    assert_nothing_is_left(live)


def test_workers_close_while_shards_are_on_their_way(live: Live, slow: asyncio.Event):
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        total = c.compute(shuffled())
        await under_way(live)
        asyncio.get_running_loop().call_later(2, slow.set)  # Dask waits for its handlers; we do not
        del total

    scenario()
    assert_nothing_is_left(live)


def test_switched_off_in_the_middle(live: Live, slow: asyncio.Event):
    """What is open then ends then; the shuffle goes on."""
    live.again(**EVERYTHING)

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        total = c.compute(shuffled())
        await under_way(live)
        runtime = live.runtime
        live.switch.off()
        before = len(live.switch.exported.finished)
        slow.set()
        assert await total == 1600
        assert len(live.switch.exported.finished) == before
        assert runtime.shuffles.open == set()

    scenario()
    live.check()
    assert "closed" in {span.attributes["dask.outcome"] for span in of(live, "shuffle_receive")}


class Patient:
    async def waits(self) -> None:
        await asyncio.sleep(60)


def test_a_worker_closes_while_an_actor_is_called(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        patient = await c.submit(Patient, key="Patient-1", actor=True, workers=[a.address])
        c.direct_to_workers = True
        patient.waits()
        while not live.runtime.actors.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await a.close()

    scenario()
    live.check()
    assert live.runtime.actors.open == set()
    served = [span for span in live.spans() if span.name == "actor Patient.waits" and span.kind == "server"]
    assert [span.attributes["dask.outcome"] for span in served] in (["closed"], ["error"])
