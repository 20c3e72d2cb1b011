"""What travels besides `get_data`, over transports that have no frames, or frames of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask.array as da
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.utils_test import gen_cluster

from tests.test_actors import Counter, calls, of, provider
from tests.test_shuffle import EVERYTHING

if TYPE_CHECKING:
    from tests.live import Live

pytestmark = pytest.mark.usefixtures(provider.__name__)


@pytest.mark.parametrize("protocol", ["inproc", "ws"])
def test_shards_and_calls_carry_their_context(live: Live, protocol: str):
    live.again(**EVERYTHING)
    options = {"processes": False, "dashboard_address": ":0", "protocol": f"{protocol}://"}
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster, Client(cluster) as client:
        x = da.ones((40, 40), chunks=(10, 40)).rechunk((40, 10), method="p2p", block_size_limit=3200)
        assert x.sum().compute() == 1600
        home, other = (worker.address for worker in cluster.workers.values())
        counter = client.submit(Counter, key="Counter-1", actor=True, workers=[home]).result()
        assert client.submit(calls, counter, 2, key="calls-1", workers=[other]).result() == 2
    live.check()
    spans = {span.ref: span.name for span in live.spans()}
    receives, served = of(live, "shuffle_receive", "server"), of(live, "actor Counter.increment", "server")
    assert {spans[span.parent_ref] for span in receives} == {"shuffle.send"}
    assert [spans[span.parent_ref] for span in served] == ["actor Counter.increment"] * 2
    assert {span.attributes["dask.peer.address"] for span in served} == {other}


ODD = [None, [1], {"a": 1}, "x" * 100_000, "\ud800", float("nan"), (1, ("a",)), -1]


@pytest.mark.parametrize("odd", ODD, ids=[f"{i}" for i in range(len(ODD))])
def test_odd_messages_lose_no_more_than_their_own_span(live: Live, odd: object):
    """The fixture sees to it that no hook of ours failed, and so was switched off."""
    told = {"carrier": odd, "who": odd, "kind": odd, "annotation": odd}

    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
    async def scenario(c: Client, s: Scheduler, a: Worker):
        counter = await c.submit(Counter, key="Counter-1", actor=True)
        for actor, method in ((odd, "increment"), ("Counter-1", odd)):
            with pytest.raises((KeyError, TypeError, AttributeError)):
                await a.handlers["actor_execute"](actor=actor, function=method, otel_worker=told)
            a.handlers["actor_attribute"](actor=actor, attribute=method, otel_worker=odd)
        await a.handlers["shuffle_receive"](shuffle_id="none", run_id=1, data=odd, otel_worker=told)
        assert await counter.increment() == 1

    scenario()
    live.check()
    assert len(of(live, "actor Counter.increment", "server")) == 1
