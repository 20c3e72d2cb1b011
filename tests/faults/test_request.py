"""A request is split between the peer's unspill, its serialize and the network; the fault decides where seconds go."""

import pytest
from distributed import Client, Scheduler, Worker, wait

from tests.faults.proxy import Fault, behind_a_proxy
from tests.faults.tools import (
    ABOVE_OFFLOAD,
    MEGABYTE,
    SPILLS,
    THREADS,
    assert_near,
    below,
    calm,
    cluster,
    lasts,
    measured,
    one,
    overlap,
    plain,
    shape,
    slow,
    sums,
    use,
)
from tests.live import Live

pytestmark = pytest.mark.faults

PARTS = ("peer_loop", "peer_unspill", "peer_spill", "peer_serialize", "local_loop", "network")


def assert_split(live: Live, **expected: float) -> None:
    """The request lasts as long as its parts; those that are named as long as the fault, the others nothing."""
    request = one(live, "request", "use")
    split = {part: request.attributes[f"dask.request.{part}"] for part in PARTS}
    assert abs(sum(split.values()) - lasts(request)) < 1e-5
    for part, seconds in split.items():
        assert_near(seconds, expected.get(part, 0.0), part)
    waited = sums(one(live, "waiting", "use"), "dask.wait.")
    for part, seconds in expected.items():
        assert_near(waited[part.replace("peer_", "peer.")], seconds, f"wait {part}")
    assert abs(sum(waited.values()) - lasts(one(live, "waiting", "use"))) < 1e-5


@pytest.mark.parametrize(("claims", "thread"), [(1000, "MainThread"), (ABOVE_OFFLOAD, "Dask-Offload")])
@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_the_peer_serializes(live: Live, delay: float, claims: int, thread: str):
    @cluster()
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(slow, name="x", pickling=delay, claims=claims, key="slow-x", workers=[a.address])
        await wait(x)
        await calm()
        assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    assert THREADS["x.pickling"].startswith(thread)
    assert_split(live, peer_serialize=measured("x.pickling"))
    serialize = below(live, one(live, "get_data", peer__kind="worker"), "get_data.serialize")
    assert_near(lasts(serialize), overlap("x.pickling", serialize))
    assert_near(serialize.attributes["dask.offload.queue"], 0)
    assert shape(live, one(live, "get_data", peer__kind="worker")) == [
        "get_data",
        "  get_data.serialize",
        "  get_data.send",
    ]
    live.check()


@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_the_peer_reads_from_its_disk(live: Live, delay: float):
    @cluster(config=SPILLS, worker_kwargs={"memory_limit": 10 * MEGABYTE})
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        options = {"name": "x", "unpickling": delay, "claims": 6 * MEGABYTE}  # more than the target: written at once
        x = c.submit(slow, **options, key="slow-x", workers=[a.address])
        await wait(x)
        assert set(a.data.disk) == {"slow-x"}
        await calm()
        assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    unspill = one(live, "unspill", spill__cause="get_data")
    assert_near(overlap("x.unpickling", unspill), delay)
    assert_near(lasts(unspill), overlap("x.unpickling", unspill))
    assert unspill.attributes["dask.spill.key"] == "slow-x"
    request = one(live, "request", "use")
    assert_near(request.attributes["dask.request.peer_unspill"], delay)
    assert_near(sums(one(live, "waiting", "use"), "dask.wait.")["peer.unspill"], delay)
    assert shape(live, one(live, "get_data", peer__kind="worker")) == [
        "get_data",
        "  unspill",
        "    unspill.read",
        "    unspill.deserialize",
        "  get_data.serialize",
        "  get_data.send",
    ]
    live.check()


@pytest.mark.parametrize("after", [0, 4], ids=["before-the-first-byte", "after-the-first-byte"])
@pytest.mark.parametrize("delay", [0.2, 0.4])
def test_the_network_is_slow(live: Live, delay: float, after: int):
    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        async with behind_a_proxy(s, name="far") as (a, proxy):
            x = c.submit(plain, 100_000, key="plain-1", workers=[a.address])
            await wait(x)
            await calm()
            proxy.arm(Fault("wire", delay, after=64 * after))
            assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1

    scenario()
    expected = measured("wire")
    assert_split(live, network=expected)
    request = one(live, "request", "use")
    before, later = (request.attributes[f"dask.request.{name}"] for name in ("first_byte", "body"))
    assert_near(before, 0 if after else expected, "first byte")
    assert_near(later, expected if after else 0, "body")
    assert_near(lasts(one(live, "get_data", peer__kind="worker")), 0, "the peer had sent it long before")
    live.check()


def test_seconds_move_with_the_fault(live: Live):
    """The same delay at the same value: in the handshake, before the reply, and after it in the local deserialize."""

    async def fetch(c: Client, s: Scheduler, b: Worker, name: str, fault: Fault | None, unpickling: float) -> None:
        async with behind_a_proxy(s, name=name) as (a, proxy):
            x = c.submit(slow, name=name, unpickling=unpickling, key=f"slow-{name}", workers=[a.address])
            await wait(x)
            await calm()
            if fault:
                proxy.arm(fault)
            assert await c.submit(use, x, key=f"{name}-1", workers=[b.address]) == 1
            await c.cancel(x)

    @cluster(1)
    async def scenario(c: Client, s: Scheduler, b: Worker):
        await fetch(c, s, b, "early", Fault("early", 0.3, reply=False), 0)
        await fetch(c, s, b, "middle", Fault("middle", 0.3), 0)
        await fetch(c, s, b, "late", None, 0.3)

    scenario()
    phases = ("fetch.queued", "connect", "request", "fetch.deserialize")
    where = {name: [lasts(one(live, phase, name)) for phase in phases] for name in ("early", "middle", "late")}
    for place, (name, fault) in enumerate((("early", "early"), ("middle", "middle"), ("late", "late.unpickling")), 1):
        for phase, seconds in enumerate(where[name]):
            assert_near(seconds, measured(fault) if phase == place else 0, f"{name}: {phases[phase]}")
    live.check()
