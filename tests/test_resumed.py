"""Keys that are given up and wanted again while their request goes on."""

from distributed import Client, Scheduler
from distributed.utils_test import BlockedGatherDep, BlockedGetData, gen_cluster, inc, wait_for_state

from tests.live import Live


def test_wanted_again_while_the_request_is_under_way(live: Live):
    """Given up before `gather_dep` ran, wanted again while the peer is asked: the key joins a fetch that did not know it."""

    @gen_cluster(client=True, nthreads=[])
    async def scenario(c: Client, s: Scheduler):
        async with BlockedGetData(s.address) as a, BlockedGatherDep(s.address) as b:
            x = c.submit(inc, 1, key="x-1", workers=[a.address])
            y = c.submit(inc, x, key="y-1", workers=[b.address])
            await b.in_gather_dep.wait()
            await y.cancel()
            await wait_for_state("x-1", "cancelled", b)
            b.block_gather_dep.set()
            await a.in_get_data.wait()
            z = c.submit(inc, x, key="z-1", workers=[b.address])
            await wait_for_state("x-1", "flight", b)
            a.block_get_data.set()
            assert await z == 3

    scenario()
    live.check()
    fetches = [span for span in live.spans() if span.name.startswith("fetch ")]
    assert len(fetches) == 1
    assert {span.attributes["dask.task.prefix"] for span in live.spans() if span.name == "waiting"} == {"y", "z"}
