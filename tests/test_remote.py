"""Switched on and off on a cluster that runs: by code, by `enable`, for workers that join later."""

from pathlib import Path

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.utils_test import gen_cluster

import otel_worker
from otel_worker.receiver import Receiver
from otel_worker.traces import read
from tests.live import Live

cluster = gen_cluster(client=True, nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1)])


def one(i: int) -> int:
    return i


async def exchange(c: Client, a: Worker, b: Worker, name: str) -> None:
    """A value goes from one worker to the other."""
    x = c.submit(one, 1, key=f"{name}-x", workers=[a.address])
    assert await c.submit(one, x, key=f"{name}-y", workers=[b.address]) == 1


def test_workers_that_ran_before_us_are_seen_from_then_on(live: Live):
    live.switch.off()

    @cluster
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        await exchange(c, a, b, "before")
        live.switch.on()
        await c.run(one, 1)  # adopting happens on the workers' loop
        await exchange(c, a, b, "after")
        live.switch.off()
        await exchange(c, a, b, "off")
        await exchange(c, b, a, "back")

    scenario()
    keys = {s.attributes.get("dask.task.key") for s in live.spans() if s.operation == "task"}
    assert keys == {"after-x", "after-y"}
    [request] = [s for s in live.spans() if s.name == "request"]
    # The pooled connection is older than us, so the peer never announced itself on it.
    assert request.attributes["dask.peer.instrumented"] is False
    live.switch.on()
    live.check()


def test_enable_and_disable_on_workers_that_know_nothing_of_opentelemetry(tmp_path: Path):
    with (
        Receiver(tmp_path) as receiver,
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):

        def exchange_keys(name: str) -> None:
            a, b, *_ = client.scheduler_info(n_workers=-1)["workers"]
            x = client.submit(one, 1, key=f"{name}-x", workers=[a])
            assert client.submit(one, x, key=f"{name}-y", workers=[b]).result() == 1

        exchange_keys("before")
        otel_worker.enable(client, endpoint=receiver.grpc_endpoint, span_budget=1000.0)
        exchange_keys("enabled")
        cluster.scale(3)
        client.wait_for_workers(3)
        joined = list(client.scheduler_info(n_workers=-1)["workers"])[-1]
        assert client.submit(one, 1, key="joined-x", workers=[joined]).result() == 1
        otel_worker.disable(client)
        exchange_keys("disabled")
        client.close()
        cluster.close()
        keys = {s.attributes.get("dask.task.key") for s in read(tmp_path).spans if s.operation == "task"}
    assert keys == {"enabled-x", "enabled-y", "joined-x"}


def test_a_preload_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Receiver(tmp_path) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.grpc_endpoint)
        with (
            LocalCluster(1, host="127.0.0.1", dashboard_address=":0", preload=["otel_worker.preload"]) as cluster,
            Client(cluster) as client,
        ):
            assert client.submit(one, 1, key="preloaded-x").result() == 1
        [task] = [s for s in read(tmp_path).spans if s.operation == "task"]
    assert task.attributes["dask.task.key"] == "preloaded-x"
    assert task.service == "dask-worker"


def test_an_unknown_setting_is_a_type_error():
    with pytest.raises(TypeError, match="unknown setting span_budgets"):
        otel_worker.enable(None, span_budgets=1)
