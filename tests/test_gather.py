"""Values that go where no task waits for them: replicas, `Worker.gather`, and what clients and the scheduler ask for."""

from collections import Counter

from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster, inc

from otel_worker.traces import Span
from tests.faults.tools import until
from tests.live import Live

QUIET = {"distributed.scheduler.active-memory-manager.start": False}
TWO = [("127.0.0.1", 1)] * 2
cluster = gen_cluster(client=True, nthreads=TWO, config=QUIET)

REQUEST = [
    "    connect",
    "      connect.pool",
    "      connect.dial",
    "      connect.handshake",
    "    request",
    "      get_data",
    "        get_data.serialize",
    "        get_data.send",
    "    fetch.deserialize",
]


def kinds(live: Live) -> Counter[tuple[str, bool]]:
    """Of each `get_data`: who asked, and whether it is a root."""
    return Counter((s.attributes["dask.peer.kind"], not s.parent_id) for s in live.spans() if s.name == "get_data")


def only(live: Live, name: str) -> Span:
    (found,) = (span for span in live.spans() if span.name == name)
    return found


# --- the scheduler makes a worker fetch ------------------------------------------------------------------------------


def test_replicate(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(inc, 1, key="x-1", workers=[a.address])
        await x
        await c.replicate([x], n=2)
        assert b.data == {"x-1": 2}

    scenario()
    live.check()
    assert live.tree("gather") == ["gather", "  fetch replica", *REQUEST]
    gather, fetch = only(live, "gather"), only(live, "fetch replica")
    assert gather.attributes["dask.fetch.reason"] == fetch.attributes["dask.fetch.reason"] == "replicate_or_rebalance"
    assert gather.attributes["dask.fetch.keys"] == ["x-1"]
    assert gather.attributes["dask.fetch.nbytes"] == 28
    assert (gather.attributes["dask.outcome"], fetch.attributes["dask.outcome"]) == ("success", "success")
    assert kinds(live)["worker", False] == 1


def test_rebalance(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        held = await c.scatter({"x-0": 1}, workers=[a.address])
        await s._rebalance_move_data([(s.workers[a.address], s.workers[b.address], s.tasks["x-0"])], stimulus_id="test")
        assert (set(held), set(a.data), set(b.data)) == ({"x-0"}, set(), {"x-0"})

    scenario()
    live.check()
    assert live.tree("gather") == ["gather", "  fetch replica", *REQUEST]


def test_a_gather_that_finds_nobody(live: Live):
    @gen_cluster(client=True, nthreads=TWO, config={**QUIET, "distributed.comm.timeouts.connect": "100ms"})
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        assert (await b.gather({"x-1": ["tcp://127.0.0.1:1"]}))["status"] == "partial-fail"

    scenario()
    live.check()
    gather = only(live, "gather")
    assert gather.attributes["dask.outcome"] == "missing"
    assert set(live.tree("gather")) >= {"gather", "  fetch replica", "    connect"}
    for fetch in (s for s in live.spans() if s.name == "fetch replica"):
        assert (fetch.attributes["dask.outcome"], fetch.status) == ("network_failure", "error")


def test_spilling_to_store_what_was_gathered(live: Live):
    @gen_cluster(
        client=True,
        nthreads=TWO,
        worker_kwargs={"memory_limit": "10 MB"},
        config={
            **QUIET,
            "distributed.worker.memory.target": 0.5,
            "distributed.worker.memory.spill": False,
            "distributed.worker.memory.pause": False,
        },
    )
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        y = c.submit(bytes, 4_000_000, key="y-1", workers=[b.address])
        x = c.submit(bytes, 4_000_000, key="x-1", workers=[a.address])
        await c.gather([x, y])
        await c.replicate([x], n=2)

    scenario()
    live.check()
    below = live.tree("gather")
    assert "  spill" in below
    spill = only(live, "spill")
    assert spill.attributes["dask.spill.cause"] == "store"
    assert spill.attributes["dask.spill.trigger_key"] == "x-1"
    assert spill.attributes["dask.spill.key"] in ("x-1", "y-1")


# --- replicas through the state machine ------------------------------------------------------------------------------


def test_a_replica_that_the_memory_manager_wants(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(inc, 1, key="x-1", workers=[a.address])
        await x
        s.request_acquire_replicas(b.address, ["x-1"], stimulus_id="test")
        await until(lambda: len(s.tasks["x-1"].who_has) == 2)
        s.request_remove_replicas(b.address, ["x-1"], stimulus_id="test")
        await until(lambda: "x-1" not in b.data)

    scenario()
    live.check()
    assert live.tree("fetch replica") == ["fetch replica", "  fetch.queued", *(line[2:] for line in REQUEST)]
    fetch = only(live, "fetch replica")
    assert (fetch.attributes["dask.fetch.reason"], fetch.attributes["dask.outcome"]) == ("replica", "success")
    assert not fetch.parent_id


def test_retiring_a_worker_moves_its_values(live: Live):
    @gen_cluster(client=True, nthreads=TWO)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        xs = c.map(inc, range(3), key=[f"x-{i}" for i in range(3)], workers=[a.address])
        await c.gather(xs)
        await c.retire_workers([a.address])
        assert set(b.data) == {"x-0", "x-1", "x-2"}
        await a.finished()

    scenario()
    live.check()
    fetches = [span for span in live.spans() if span.operation == "fetch"]
    assert {span.attributes["dask.fetch.reason"] for span in fetches} == {"replica"}
    assert sum(span.attributes["dask.fetch.key_count"] for span in fetches) == 3


# --- who asks --------------------------------------------------------------------------------------------------------


def test_get_data_says_who_asked(live: Live):
    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(inc, 1, key="x-1", workers=[a.address])
        assert await c.gather(x, direct=False) == 2
        assert kinds(live) == {("scheduler", True): 1}
        assert await c.gather(x, direct=True) == 2
        assert kinds(live) == {("scheduler", True): 1, ("client", True): 1}
        await c.submit(inc, x, key="y-1", workers=[b.address])
        assert kinds(live)["worker", False] == 1

    scenario()
    live.check()


def test_who_asked_without_us(live: Live):
    """A scheduler without us is known by its handshake, a client without us is not."""
    live.switch.off()

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        x = c.submit(inc, 1, key="x-1", workers=[a.address])
        assert await c.gather(x, direct=False) == await c.gather(x, direct=True) == 2
        live.switch.on()
        await c.run(int)  # adopting happens on the workers' loop
        await c.gather(x, direct=False)  # over the connections of before
        assert kinds(live) == {("scheduler", True): 1}
        await c.gather(x, direct=True)
        assert kinds(live) == {("scheduler", True): 1, ("unknown", True): 1}

    scenario()
    live.check()
