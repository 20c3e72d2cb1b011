"""The rounds: work and trouble, then quiet, and everything that must hold then."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, LocalCluster, wait
from distributed.client import FuturesCancelledError

from otel_worker.breakdown import self_check
from otel_worker.checks import check
from otel_worker.receiver import Receiver
from otel_worker.reports import METHODS, Options, build
from otel_worker.testing import EVERYTHING
from otel_worker.traces import read
from tests.soak import inside
from tests.soak.work import graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed import Future

WORKERS = 3
SURVIVOR = "0"  # never killed: its memory is watched over the whole run
MEMORY = 120_000_000  # bytes by which the values that a worker holds are spilled; what they claim counts
CONFIG = {
    "distributed.worker.memory.target": 0.2,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.allowed-failures": 100,
    "distributed.admin.low-level-log-length": 500,
    "distributed.worker.transfer.message-bytes-limit": "2 MB",
    "distributed.comm.timeouts.connect": "10 s",
    "distributed.comm.retry.count": 0,
}
LOST = "which is not there"  # what `check` says of a parent or a link that went with a killed process
GROWTH = 30_000_000  # bytes that memory may vary by itself
KEPT = 200  # records of ours that the interpreter may still hold: frames of threads, free lists


@dataclass
class Soak:
    """What a run has seen so far; `wrong` holds a sentence for each thing that must not be."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    rounds: int = 0
    tasks: int = 0
    spans: int = 0
    stuck: int = 0  # rounds, the futures of which were not done in time
    lost: int = 0  # workers that did not come back after they were killed
    faults: dict[str, int] = field(default_factory=dict)
    rss: list[int] = field(default_factory=list)  # of the survivor, by round
    client_rss: list[int] = field(default_factory=list)
    seconds: float = 0.0
    moved: dict[str, float] = field(default_factory=dict)  # bytes by what was done with them, of the survivor

    def summary(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "rounds": self.rounds,
            "seconds": round(self.seconds),
            "tasks": self.tasks,
            "spans": self.spans,
            "faults": self.faults,
            "stuck": self.stuck,
            "lost": self.lost,
            "moved": self.moved,
            "rss": _ends(self.rss),
            "client_rss": _ends(self.client_rss),
            "wrong": self.wrong[:20],
        }


def _ends(rss: list[int]) -> list[float]:
    """First, median and last, MB."""
    return [round(n / 1e6, 1) for n in (rss[0], statistics.median(rss), rss[-1])] if rss else []


def run(seconds: float, seed: int, tell: Callable[[str], None] = print) -> Soak:
    """Rounds for so long, and at least one; stops at the first round after which something is wrong."""
    soak = Soak(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Receiver(folder) as receiver:
        os.environ[inside.ENDPOINT] = receiver.http_endpoint
        root = str(Path(__file__).parents[2])
        environ = {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
        config = {**CONFIG, "temporary-directory": folder, "distributed.nanny.pre-spawn-environ": environ}
        config["distributed.worker.preload"] = ["tests.soak.inside"]
        here = inside.Watch(receiver.http_endpoint, EVERYTHING)
        with (
            dask.config.set(config),
            LocalCluster(
                n_workers=WORKERS, threads_per_worker=2, memory_limit=MEMORY, dashboard_address=":0", silence_logs=50
            ) as cluster,
            Client(cluster) as client,
        ):
            runner = _Runner(soak, client, receiver, here)
            while not soak.wrong and (time.monotonic() - began < seconds or not soak.rounds):
                runner.round()
                soak.seconds = time.monotonic() - began
                tell(json.dumps(soak.summary()))
        here.instrumentor.uninstrument()
        _flat(soak)
    return soak


def _flat(soak: Soak) -> None:
    """After a warm-up, memory does not grow: the last quarter of the rounds against the second."""
    for name, rss in (("the surviving worker", soak.rss), ("the client", soak.client_rss)):
        if (quarter := len(rss) // 4) < 3:
            continue
        before, after = statistics.median(rss[quarter : 2 * quarter]), statistics.median(rss[-quarter:])
        if after > before + GROWTH + 0.1 * before:
            soak.wrong.append(f"{name} grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB in {len(rss)} rounds")


class _Runner:
    def __init__(self, soak: Soak, client: Client, receiver: Receiver, here: inside.Watch) -> None:
        self.soak = soak
        self.client = client
        self.receiver = receiver
        self.here = here
        self.expected = WORKERS
        self._seen: set[str] = set()  # ids of spans of earlier rounds: `tasks` may be of an interval that began in one

    # --- trouble -----------------------------------------------------------------------------------------------------------

    def workers(self) -> dict[str, str]:
        """Addresses by name, of those that are there now."""
        info = self.client.scheduler_info(n_workers=-1)["workers"]
        return {str(about["name"]): address for address, about in info.items()}

    def _pid(self, name: str) -> int | None:
        """None while it starts: a Nanny gives up when its child dies then."""
        nanny = self.client.cluster.workers.get(int(name))
        process = getattr(nanny, "process", None)
        return process.pid if process is not None and process.status.name == "running" else None

    def trouble(self, chance: random.Random, futures: list[Future], what: str) -> None:
        self.soak.faults[what] = self.soak.faults.get(what, 0) + 1
        if what == "cancel":
            self.client.cancel(chance.sample(futures, min(len(futures), 8)))
        elif what == "release":
            for future in chance.sample(futures, min(len(futures), 8)):
                future.release()
                futures.remove(future)
        elif what in ("kill", "freeze"):
            victims = sorted(
                name for name in self.workers() if name != SURVIVOR
            )  # a Nanny's child that starts is spared
            if victims and (pid := self._pid(chance.choice(victims))) is not None:
                self._signal(pid, what)
        elif (address := chance.choice([*self.workers().values(), ""])) != "":
            act: Any = inside.pause if what == "pause" else inside.stop_the_loop
            with suppress(OSError):
                self.client.run(act, chance.choice((0.05, 0.3)), workers=[address], on_error="ignore", wait=False)

    @staticmethod
    def _signal(pid: int, what: str) -> None:
        with suppress(ProcessLookupError):
            if what == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(pid, signal.SIGCONT)

    # --- a round -------------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        soak = self.soak
        number = soak.rounds
        chance = random.Random(f"{soak.seed}-{number}")
        rough = number % 3 == 2  # processes die in each third round
        futures = graph(self.client, chance, f"{number}")
        soak.tasks += len(futures)
        kinds = ["cancel", "release", "pause", "loop", "freeze"] + ["kill"] * 2 * rough
        for _ in range(chance.randint(2, 6)):
            time.sleep(chance.random() * 0.4)
            what = chance.choice(kinds)
            self.trouble(chance, futures, what)
            if what == "kill":
                kinds = [
                    kind for kind in kinds if kind != "kill"
                ]  # one that restarts, and is killed again, may not return
        self._wait(futures)
        with suppress(FuturesCancelledError):
            self.client.cancel(futures)
        for future in futures:
            future.release()
        self._quiet(futures)
        del futures
        soak.rounds += 1
        self._judge(lossy=rough)

    def _wait(self, futures: list[Future]) -> None:
        """What a killed worker leaves hanging is Dask's: it is cancelled, and counted."""
        try:
            wait([future for future in futures if future.status == "pending"], timeout=30)
        except TimeoutError:
            self.soak.stuck += 1
        except FuturesCancelledError:
            pass

    def _quiet(self, futures: list[Future]) -> None:
        """Until no worker knows of a task and all are there."""
        deadline = time.monotonic() + 60  # a process that was killed comes back as soon as the machine can start it
        left: Any = None
        while time.monotonic() < deadline:
            with suppress(OSError):  # a worker that was killed is asked just then
                left = self.client.run(_tasks_left, on_error="ignore")
            if left and len(left) >= self.expected and not any(left.values()):
                time.sleep(0.2)  # an interval of ticks
                return
            time.sleep(0.1)
        if left and not any(left.values()) and len(left) > 1:
            self.soak.lost += self.expected - len(left)
            self.expected = len(left)
        else:
            self.soak.wrong.append(f"round {self.soak.rounds}: tasks are left on the workers: {left}")

    # --- what must hold ------------------------------------------------------------------------------------------------------

    def _judge(self, *, lossy: bool) -> None:
        soak = self.soak
        told = {self._name(at): found for at, found in self.client.run(inside.probe).items()}
        for name, found in [*told.items(), ("client", self.here.probe())]:
            for sentence in _judged(found):
                soak.wrong.append(f"round {soak.rounds}, {name}: {sentence}")
            if name == SURVIVOR:
                soak.rss.append(found["rss"])
                soak.moved = {what: ours for what, (ours, _) in found["compared"].items() if what.startswith("bytes")}
            if name == "client":
                soak.client_rss.append(found["rss"])
        soak.wrong += [f"round {soak.rounds}: {sentence}" for sentence in self._spans(lossy=lossy)]

    def _name(self, address: str) -> str:
        return next((name for name, at in self.workers().items() if at == address), address)

    def _spans(self, *, lossy: bool) -> list[str]:
        """What the spans of this round say of themselves; a killed process takes some with it."""
        traces = read(self.receiver.path)
        os.truncate(self.receiver.path, 0)
        self.soak.spans += len(traces.spans)
        self._seen.update(span.span_id for span in traces.spans)
        found = [
            sentence for sentence in check(traces.spans) if not (LOST in sentence and (lossy or self._old(sentence)))
        ]
        for method in METHODS:
            for group in build(traces, "soak", Options(method=method)).groups:
                found += self_check(group.tree)
        return found

    def _old(self, sentence: str) -> bool:
        return bool(self._seen & {word.rstrip(",") for word in sentence.rpartition(" has ")[2].split()})


def _tasks_left(dask_worker: Any) -> int:
    state = dask_worker.state
    return len(state.tasks) + len(state.in_flight_workers) + len(state.executing) + len(state.long_running)


def _judged(found: dict[str, Any]) -> list[str]:
    wrong = [f"{what}: {found[what]}" for what in ("open", "twice", "told", "failures", "futures") if found[what]]
    wrong += [f"a map is not empty: {sizes}" for sizes in found["sizes"] if any(sizes.values())]
    if found["produced"]:
        wrong.append(f"{found['produced']} spans are held for values that are gone")
    if sum(found["kept"].values()) > KEPT:
        wrong.append(f"records are kept: {found['kept']}")
    for what, (ours, dasks) in found.get("compared", {}).items():
        slack = 0.02 * dasks + (0.3 if what.startswith("seconds") else 0)
        if abs(ours - dasks) > slack:
            wrong.append(f"{what}: we say {ours:.3f}, Dask {dasks:.3f}; {_differing(found['states'])}")
    return wrong


def _differing(states: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {cell: both for cell, both in states.items() if abs(both[0] - both[1]) > 0.1}
