"""Each protocol of Dask's: the same tree, as far as the protocol has such parts."""

from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.security import Security
from distributed.utils_test import gen_cluster, gen_test

from otel_worker.trees import subtree
from tests.live import Live
from tests.test_production import certify

QUIET = {"distributed.scheduler.active-memory-manager.start": False, "distributed.scheduler.work-stealing": False}


def make(n: int) -> bytes:
    return bytes(n)


def use(data: bytes) -> int:
    return len(data)


def cluster(protocol: str, folder: Path) -> Any:
    local = {"client": True, "config": QUIET}
    two = [("127.0.0.1", 1)] * 2
    if protocol == "tcp":
        return gen_cluster(nthreads=two, **local)
    if protocol == "ws":
        kwargs = {"protocol": "ws://"}
        return gen_cluster(nthreads=two, scheduler_kwargs=kwargs, worker_kwargs=kwargs, **local)
    at = "tls://127.0.0.1"
    return gen_cluster(nthreads=[(at, 1)] * 2, scheduler=at, security=encrypted(folder), **local)


def encrypted(folder: Path) -> Security:
    certify(folder)
    who = {f"tls_{role}_{what}": str(folder / f"{what}.pem") for role in ROLES for what in ("cert", "key")}
    return Security(tls_ca_file=str(folder / "cert.pem"), require_encryption=True, **who)


ROLES = ("client", "scheduler", "worker")


TREE = [
    "compute use",
    "  submit",
    "  task use",
    "    waiting",
    "      fetch use",
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
# The object itself arrives: it is never sent.
NOT_INPROC = {"            get_data.send"}


async def passed_on(c: Client, a: Worker, b: Worker) -> None:
    x = c.submit(make, 1_000_000, key="x-1", workers=[a.address])
    assert await c.submit(use, x, key="use-1", workers=[b.address]) == 1_000_000


def assert_it_is_seen(live: Live, protocol: str, a: Worker, b: Worker) -> None:
    """The whole tree; and each span says on which of the two workers it happened, that are in one process."""
    live.check()
    assert a.address.startswith(f"{protocol}://")
    assert live.tree("compute use") == [line for line in TREE if protocol != "inproc" or line not in NOT_INPROC]
    request = live.find("request")
    assert request.attributes["dask.peer.address"] == a.address
    assert request.attributes["dask.peer.instrumented"] is True
    assert ("dask.request.first_byte" in request.attributes) is (protocol in ("tcp", "tls"))
    ours = subtree(live.spans(), live.find("task use"))
    at = {span.name: span.attributes["dask.worker.address"] for span in ours}
    there = {name for name, address in at.items() if address == a.address}
    assert there == {name for name in at if name.startswith("get_data")}
    assert set(at.values()) == {a.address, b.address}
    assert live.find("task x").attributes["dask.worker.address"] == a.address


@pytest.mark.parametrize("protocol", ["tcp", "tls", "ws"])
def test_the_tree_of_a_fetch(live: Live, protocol: str, tmp_path: Path):
    @cluster(protocol, tmp_path)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await passed_on(c, a, b)
        assert_it_is_seen(live, protocol, a, b)

    scenario()


def test_the_tree_of_a_fetch_in_one_process(live: Live):
    @gen_test()
    async def scenario():
        options = {"processes": False, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
        async with LocalCluster(asynchronous=True, **options) as local, Client(local, asynchronous=True) as c:
            a, b = local.workers.values()
            await passed_on(c, a, b)
            assert_it_is_seen(live, "inproc", a, b)

    scenario()
