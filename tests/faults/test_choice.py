"""How a request was chosen: what ended its list of keys, and which peers with wanted keys were skipped, and why."""

import asyncio

import pytest
from distributed import Client, Scheduler, Worker, wait

from otel_worker import names
from tests.faults.tools import calm, cluster, every, plain, until, use
from tests.live import Live

pytestmark = pytest.mark.faults

LIMIT = {"distributed.worker.transfer.message-bytes-limit": "10 kB"}
BYTES = 4000  # of a value: two go into one message


def chosen(live: Live, prefix: str) -> list[tuple[int, str, int, int]]:
    """Of each fetch: keys, what ended the list of them, peers skipped since busy, and since they had a request."""
    about = (names.FETCH_KEY_COUNT, names.FETCH_BUNDLE_END, names.FETCH_PEERS_BUSY, names.FETCH_PEERS_IN_FLIGHT)
    return [tuple(fetch.attributes[name] for name in about) for fetch in every(live, f"fetch {prefix}")]


def test_a_limit_on_bytes_ends_the_list_of_keys(live: Live):
    @cluster(config=LIMIT)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = [c.submit(plain, BYTES, key=f"plain-{i}", workers=[a.address]) for i in range(5)]
        await wait(x)
        assert await c.submit(use, *x, key="use-1", workers=[b.address]) == 1

    scenario()
    assert chosen(live, "use") == [(2, "bytes", 0, 0), (2, "bytes", 0, 0), (1, "all_keys", 0, 0)]
    for fetch in every(live, "fetch use"):
        assert fetch.attributes[names.FETCH_NBYTES] == fetch.attributes[names.FETCH_KEY_COUNT] * BYTES
    live.check()


def test_a_peer_that_has_a_request_already_is_skipped(live: Live):
    """One peer has three keys, of which two go into its request; the other's request is made while the third waits."""

    @cluster(3, LIMIT)
    async def scenario(c: Client, s: Scheduler, a: Worker, other: Worker, b: Worker):
        x = [c.submit(plain, BYTES, key=f"plain-{i}", workers=[a.address]) for i in range(3)]
        x.append(c.submit(plain, BYTES, key="plain-3", workers=[other.address]))
        await wait(x)
        assert await c.submit(use, *x, key="use-1", workers=[b.address]) == 1
        addresses.extend((a.address, other.address))

    addresses: list[str] = []
    scenario()
    by_peer: dict[object, list[tuple[object, ...]]] = {
        fetch.attributes[names.PEER_ADDRESS]: [] for fetch in every(live, "fetch use")
    }
    for fetch, about in zip(every(live, "fetch use"), chosen(live, "use"), strict=True):
        by_peer[fetch.attributes[names.PEER_ADDRESS]].append(about)
    a, other = addresses
    assert [about[:2] for about in by_peer[a]] == [(2, "bytes"), (1, "all_keys")]
    assert by_peer[other] == [(1, "all_keys", 0, 1)]
    live.check()


def test_a_busy_peer_is_skipped(live: Live):
    @cluster(3)
    async def scenario(c: Client, s: Scheduler, a: Worker, other: Worker, b: Worker):
        x = c.submit(plain, 1000, key="plain-1", workers=[a.address])
        y = c.submit(plain, 1000, key="plain-2", workers=[other.address])
        await wait([x, y])
        await calm()
        limit, a.transfer_outgoing_count_limit = a.transfer_outgoing_count_limit, 0
        first = c.submit(use, x, key="first-1", workers=[b.address])
        await until(lambda: a.address in b.state.busy_workers)
        second = c.submit(use, y, key="second-1", workers=[b.address])
        assert await asyncio.wait_for(second, 10) == 1
        a.transfer_outgoing_count_limit = limit
        assert await first == 1

    scenario()
    (about,) = chosen(live, "second")
    assert about in {(1, "all_keys", 1, 0), (1, "all_keys", 0, 1)}  # it may just have been asked again
    *_, last = chosen(live, "first")
    assert last == (1, "all_keys", 0, 0)
    live.check()
