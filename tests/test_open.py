"""`otel-worker open` on real processes: one peer never answers, one worker does not have us."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from distributed import Client, Future

from otel_worker.cli.group import otel_worker
from otel_worker.receiver import Receiver
from otel_worker.traces import Span, read
from tests.faults.tools import plain
from tests.processes import BIN, Program, Programs, environment, eventually
from tests.services import ROOT

pytestmark = pytest.mark.slow

COMMAND = [str(BIN / "otel-worker"), "open"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(otel_worker, ["open", *arguments], prog_name="otel-worker", catch_exceptions=False)


class Stopped(NamedTuple):
    """Bob is stopped in the middle of what alice asked him for; plain does not have us."""

    scheduler: str
    alice: Program
    address: dict[str, str]
    receiver: Receiver
    key: str


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    folder = tmp_path_factory.mktemp("open")
    programs = Programs(folder)
    with Receiver(folder / "otlp") as receiver:
        try:
            scheduler = programs.scheduler()
            variables = {"PYTHONPATH": str(ROOT), "OTEL_PYTHON_DASK_STUCK_AFTER": "4", "OTEL_BSP_SCHEDULE_DELAY": "100"}
            endpoint = receiver.grpc_endpoint
            alice = programs.worker(scheduler, "alice", "--no-nanny", endpoint=endpoint, **variables)
            bob = programs.worker(scheduler, "bob", "--no-nanny", endpoint=endpoint, **variables)
            programs.worker(scheduler, "plain", "--no-nanny", PYTHONPATH=str(ROOT))
            with Client(scheduler.address) as client:
                client.wait_for_workers(3, timeout=60)
                at = {str(w["name"]): a for a, w in client.scheduler_info(n_workers=-1)["workers"].items()}
                held = ask_one_who_is_stopped(client, at, bob)
                yield Stopped(scheduler.address, alice, at, receiver, held[-1].key)
                bob.popen.send_signal(signal.SIGCONT)
        finally:
            programs.end()


def ask_one_who_is_stopped(client: Client, at: dict[str, str], bob: Program) -> list[Future]:
    x = client.submit(plain, 1000, key="plain-1", workers=[at["bob"]])
    warm = client.submit(len, x, key="warm-1", workers=[at["alice"]])  # there is a pooled connection
    assert warm.result(30)
    y = client.submit(plain, 1000, key="plain-2", workers=[at["bob"]])
    y.result(30)
    os.kill(bob.popen.pid, signal.SIGSTOP)
    return [x, y, client.submit(len, y, key="len-2", workers=[at["alice"]])]


def look(stopped: Stopped, *more: str) -> dict[str, Any]:
    done = run(stopped.scheduler, "--json", "--timeout", "1.5", *more)
    assert (done.exit_code, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_peer_that_never_answers_is_named(stopped: Stopped):
    time.sleep(3)
    found = look(stopped)
    by_kind = {opening["kind"]: opening for opening in found["open"]}
    assert set(by_kind) == {"task", "fetch"}
    for opening, key, state in ((by_kind["task"], "len-2", "waiting"), (by_kind["fetch"], "plain-2", "flight")):
        assert (opening["key"], opening["state"], opening["name"]) == (key, state, "alice")
        assert (opening["phase"], opening["peer"]) == ("request", stopped.address["bob"])
        assert 3.0 <= opening["phase_seconds"] <= opening["seconds"] + 0.001
    states = {worker["name"]: worker["state"] for worker in found["workers"]}
    assert states == {"alice": "answered", "bob": "silent", "plain": "without"}
    later = look(stopped)["open"][0]
    assert later["seconds"] > found["open"][0]["seconds"]


def test_as_a_table(stopped: Stopped):
    done = run(stopped.scheduler, "--timeout", "1.5")
    assert done.exit_code == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "len-2" in line)
    assert all(part in row for part in ("alice", "waiting", "request", "bob", stopped.address["bob"]))
    assert f"bob {stopped.address['bob']}: no answer in time\n" in done.stdout
    assert f"plain {stopped.address['plain']}: without otel_worker\n" in done.stdout
    assert "1 of 3 workers answered; 2 open." in done.stdout


def test_watching_does_not_pile_up_questions(stopped: Stopped):
    """Each look is a line; who did not answer the first time costs the next looks nothing."""
    command = [*COMMAND, stopped.scheduler, "--watch", "--every", "0.2", "--json", "--timeout", "1.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(5)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    times = [found["at"] for found in looks]
    assert times[4] - times[0] < 4 * 1.5  # each alone would have waited for bob
    assert all(("bob", "silent") in {(w["name"], w["state"]) for w in found["workers"]} for found in looks)


def test_it_is_told_as_stuck_once(stopped: Stopped):
    def spans() -> list[Span]:
        path = stopped.receiver.path
        return [s for s in read(path).spans if s.name == "task.stuck"] if path.stat().st_size else []

    eventually(spans, "nobody told that it is stuck")
    time.sleep(2.5)  # two more looks
    [span] = spans()
    assert span.attributes["dask.task.key"] == "len-2"
    assert span.attributes["dask.peer.address"] == stopped.address["bob"]
    assert [event.name for event in span.events] == ["task.stuck"]
    warnings = [line for line in stopped.alice.logged().splitlines() if "is stuck on" in line]
    assert len(warnings) == 1
    assert "task len-2 is stuck on alice: waiting for" in warnings[0]


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("tcp://127.0.0.1:9", 1, "The scheduler tcp://127.0.0.1:9"),
        ("127.0.0.1:notaport", 2, "'127.0.0.1:notaport' can't be used as a scheduler's address"),
        ("tcp://127.0.0.1", 2, "it has no port"),
        ("ftp://127.0.0.1:9", 2, "'ftp://127.0.0.1:9' can't be used"),
        ("tls://127.0.0.1:9", 2, "TLS needs --tls-ca-file"),
    ],
)
def test_a_bad_address_is_one_sentence(address: str, status: int, said: str):
    done = run(address, "--timeout", "1")
    assert done.exit_code == status, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_worker_is_no_scheduler(stopped: Stopped):
    done = run(stopped.address["alice"], "--timeout", "5")
    assert done.exit_code == 2
    assert done.stderr == f"otel-worker: {stopped.address['alice']} is the address of a Worker, not of a scheduler.\n"


def test_over_tls(programs: Programs, tmp_path: Path):
    from tests.test_production import certify

    certify(tmp_path)
    files = {"ca-file": "cert.pem", "cert": "cert.pem", "key": "key.pem"}
    tls = [part for name, file in files.items() for part in (f"--tls-{name}", str(tmp_path / file))]
    port_file = tmp_path / "scheduler.json"
    programs.start(
        *("dask", "scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
        *("--scheduler-file", str(port_file), *tls),
    )
    eventually(lambda: port_file.exists() and port_file.stat().st_size, "no scheduler")
    address = json.loads(port_file.read_text())["address"]
    done = run(address, *tls)
    assert (done.exit_code, done.stderr) == (1, f"otel-worker: The scheduler {address} has no workers.\n")
