"""`otel_worker.capture(client)` on real clusters: with threads and without, again and again, beside others, and out of reach."""

from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, Scheduler, Worker
from distributed.utils_test import gen_cluster

import otel_worker
from otel_worker import names
from otel_worker.captures import CaptureError
from otel_worker.receiver import Receiver
from otel_worker.traces import read
from tests.processes import Programs, eventually
from tests.services import ROOT
from tests.test_remote import exchange, one


def tasks(source: Path) -> set[Any]:
    return {s.attributes[names.TASK_KEY] for s in read(source).spans if s.operation == names.TASK}


def is_on() -> bool:
    return bool(otel_worker.DaskInstrumentor().is_instrumented_by_opentelemetry)


def exchanged(client: Client, name: str) -> None:
    """As `exchange`, with a client of threads."""
    a, b, *_ = client.scheduler_info(n_workers=-1)["workers"]
    x = client.submit(one, 1, key=f"{name}-x", workers=[a])
    assert client.submit(one, x, key=f"{name}-y", workers=[b]).result() == 1


@pytest.mark.slow
def test_a_cluster_that_knows_nothing_of_us_and_one_that_was_switched_on(tmp_path: Path):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        exchanged(client, "before")
        with otel_worker.capture(client) as c:
            exchanged(client, "first")
        assert c.notes == ()
        assert tasks(c.source) == {"first-x", "first-y"}
        assert c.report().data.extent.tasks == 2
        assert "compute first-y" in {s.name for s in read(c.source).spans}  # the client's half
        exchanged(client, "between")
        assert not any(client.run(is_on).values())
        assert not is_on()

        with Receiver(tmp_path / "other") as other:
            otel_worker.enable(client, endpoint=other.grpc_endpoint, span_budget=1000.0)
            with otel_worker.capture(client, out=tmp_path / "second") as c:
                exchanged(client, "second")
            [note] = c.notes
            assert note.startswith("2 of 2 workers were switched on already (")
            assert "send to this capture as well as where they sent before" in note
            exchanged(client, "after")
            otel_worker.disable(client)  # sends the rest
            assert tasks(tmp_path / "second") == {"second-x", "second-y"}
            assert tasks(other.folder) == {"second-x", "second-y", "after-x", "after-y"}


def test_an_asynchronous_client_and_workers_in_its_process(tmp_path: Path):
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
    async def scenario(c: Client, s: Scheduler, a: Worker, b: Worker):
        with pytest.raises(TypeError, match="async with"), otel_worker.capture(c):
            pass
        async with otel_worker.capture(c, out=tmp_path) as captured:
            await exchange(c, a, b, "in")
            assert is_on()
        await exchange(c, a, b, "out")
        assert captured.notes == ()
        assert not is_on()

    scenario()
    assert tasks(tmp_path) == {"in-x", "in-y"}


def test_what_is_in_the_block_fails_as_ever(tmp_path: Path):
    with (
        LocalCluster(1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(ZeroDivisionError),
        otel_worker.capture(client, out=tmp_path),
    ):
        client.submit(lambda: 1 / 0, key="fails-1").result()
    assert not is_on()
    assert tasks(tmp_path) == {"fails-1"}


@pytest.mark.slow
def test_workers_that_do_not_reach_it(programs: Programs, tmp_path: Path):
    """A proxy that is not there stands between."""
    scheduler = programs.scheduler()
    away = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": "", "PYTHONPATH": str(ROOT)}
    programs.worker(scheduler, "away", "--no-nanny", **away)
    scheduler.has(workers=1)
    with Client(scheduler.address) as client:
        with (
            pytest.raises(
                CaptureError, match=r"None of the 1 workers can connect to this capture at 127\.0\.0\.1:\d+;"
            ),
            otel_worker.capture(client),
        ):
            raise AssertionError("nothing can be captured")
        programs.worker(scheduler, "alice", "--no-nanny", PYTHONPATH=str(ROOT))
        client.wait_for_workers(2, timeout=60)
        with otel_worker.capture(client, out=tmp_path / "out") as c:
            told = client.scheduler_info(n_workers=-1)["workers"]
            at = {str(worker["name"]): address for address, worker in told.items()}
            assert client.submit(one, 1, key="seen-1", workers=[at["alice"]]).result() == 1
        [note] = c.notes
        assert note.startswith(
            "1 of 2 workers are not in this capture (away): can't connect to this capture at 127.0.0.1:"
        )
        assert tasks(c.source) == {"seen-1"}
    eventually(lambda: not is_on(), "we are still on")


def test_bad_input_is_one_sentence(tmp_path: Path):
    with pytest.raises(TypeError, match="unknown setting span_budgets"):
        otel_worker.capture(None, span_budgets=1)
    with LocalCluster(1, processes=False, dashboard_address=":0") as cluster, Client(cluster) as client:
        with (
            pytest.raises(CaptureError, match=r"192\.0\.2\.1 is no address of this machine"),
            otel_worker.capture(client, host="192.0.2.1"),
        ):
            pass
        assert not is_on()
