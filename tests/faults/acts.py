"""The faults of the table, one function each, on the processes of bench.py. Each leaves what it measured in NOTES.

Afterwards there is a task with the key `use-<name of the function>`: the one that waited.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distributed import wait

from tests.faults.proxy import Fault
from tests.faults.tools import NOTES, hold, noting, plain, slow, use
from tests.processes import eventually
from tests.programs import inside
from tests.programs.slow_to_import import imported

if TYPE_CHECKING:
    from tests.faults.bench import Bench

LARGE = 300_000  # bytes: such a value is deserialized in the offload thread
HALF = 300_000_000  # bytes that a value claims: of two of these in memory one is spilled


def connected(b: Bench, where: str, peer: str) -> None:
    """From now on there is a pooled connection, and the functions are known on both sides."""
    x = b.made(peer, plain, 10, key=f"warm-{where}-{peer}")
    b.made(where, use, x, key=f"warmed-{where}-{peer}")


def handshake(b: Bench) -> None:
    x = b.made("far", plain, 1000, key="plain-1")
    b.disconnect("near", "far")
    b.proxy.arm(Fault("handshake", 1.0, reply=False))
    b.made("near", use, x, key="use-handshake")


def pool(b: Bench) -> None:
    """The only connection that is allowed serves a slow reply."""
    x, y = b.made("far", plain, 1000, key="plain-1"), b.made("side", plain, 1000, key="plain-2")
    b.proxy.arm(Fault("pool", 1.0))
    first = b.submit("narrow", use, x, key="first-1")
    b.until_asked()
    b.made("narrow", use, y, key="use-pool")
    wait(first)


def dials(b: Bench) -> None:
    x = b.made("far", plain, 1000, key="plain-1")
    b.disconnect("near", "far")
    failed, answer = b.folder / "dials-failed", b.folder / "dials-answer"
    b.run("near", inside.tell_failed_dials, 2, str(failed), str(answer))
    b.proxy.refuse()
    with noting("refused"):
        y = b.submit("near", use, x, key="use-dials")
        eventually(failed.exists, "no dial was refused")
        b.proxy.listen()
        before = len(b.proxy.dials)
        answer.touch()
        eventually(lambda: len(b.proxy.dials) > before, "nobody dialled")
    wait(y)


def refused(b: Bench) -> None:
    """Until somebody is let in again, a second or more later: the longer it is refused, the longer Dask waits to dial."""
    x = b.made("far", plain, 1000, key="plain-1")
    b.disconnect("near", "far")
    b.proxy.refuse()
    with noting("refused"):
        y = b.submit("near", use, x, key="use-refused")
        time.sleep(1.0)
        before = len(b.proxy.dials)
        b.proxy.listen()
        eventually(lambda: len(b.proxy.dials) > before, "nobody dialled")
    wait(y)


def busy(b: Bench) -> None:
    """The peer serves two requests at once, and both replies are held back on their way."""
    x = [b.made("far", plain, 1000, key=f"plain-{i}") for i in range(3)]
    connected(b, "near", "far")
    for name in ("one", "other"):
        b.proxy.arm(Fault(name, 1.2))
    others = [b.submit(where, use, x[i], key=f"other-{i}") for i, where in enumerate(("side", "twin"))]
    b.until_asked()
    b.made("near", use, x[2], key="use-busy")
    wait(others)
    (one,), (other,) = NOTES["one"], NOTES["other"]
    NOTES["busy"] = [(max(one[0], other[0]), min(one[1], other[1]))]


def disk(b: Bench) -> None:
    """It takes 0.3 s to unpickle, where it is read from disk and where it was sent."""
    x = b.made("far", slow, name="disk", unpickling=0.3, claims=HALF, key="slow-1")
    other = b.made("far", slow, name="more", claims=HALF, key="slow-2")
    assert b.run("far", inside.spilled, "slow-1")
    connected(b, "near", "far")
    b.made("near", use, x, key="use-disk")
    b.recall("far", "disk.unpickling", "read")
    b.recall("near", "disk.unpickling", "received")
    del other


def stopped(b: Bench) -> None:
    x = b.made("far", plain, 1000, key="plain-1")
    connected(b, "near", "far")
    with b.stopped(b.pids["far"], "stopped"):
        y = b.submit("near", use, x, key="use-stopped")
        time.sleep(1.5)
    wait(y)


def offload(b: Bench) -> None:
    """Three values of 0.4 s come at once from three peers, and one thread deserializes them all."""
    x = [
        b.made(where, slow, name=f"offload.{where}", unpickling=0.4, nbytes=LARGE, key=f"slow-{where}")
        for where in ("far", "side", "twin")
    ]
    for where in ("far", "side", "twin"):
        connected(b, "near", where)
    b.made("near", use, *x, key="use-offload")
    for where in ("far", "side", "twin"):
        b.recall("near", f"offload.{where}.unpickling", where)
    NOTES["all"] = sorted(NOTES["far"] + NOTES["side"] + NOTES["twin"])
    NOTES["before"], NOTES["last"] = NOTES["all"][:2], NOTES["all"][2:]


def spilling(b: Bench) -> None:
    """What was fetched needs room, and what has to go takes 2 s to pickle."""
    hog = b.made("near", slow, name="hog", pickling=2.0, nbytes=2000, claims=HALF, key="hog-1")
    x = b.made("far", slow, name="x", claims=HALF, key="slow-1")
    connected(b, "near", "far")
    b.made("near", use, x, key="use-spilling")
    b.recall("near", "hog.pickling")
    del hog


def paused(b: Bench) -> None:
    first = b.submit("near", hold, name="hold", seconds=1.0, key="first-1")
    second = b.submit("near", use, key="use-paused")
    b.until_known("near", "use-paused")
    b.run("near", inside.fill_memory, 0.5, 2.0)
    wait([first, second])
    b.recall("near", "paused")


def thread(b: Bench) -> None:
    first = b.submit("near", hold, name="hold", seconds=2.0, key="first-1")
    second = b.submit("near", use, key="use-thread")
    wait([first, second])
    b.recall("near", "hold")


def resource(b: Bench) -> None:
    """There are two threads, but one resource."""
    first = b.submit("twin", hold, name="taken", seconds=2.0, resources={"R": 1}, key="first-1")
    second = b.submit("twin", use, resources={"R": 1}, key="use-resource")
    wait([first, second])
    b.recall("twin", "taken")


def module(b: Bench) -> None:
    b.made("near", imported, key="use-module")
    b.made("near", imported, key="use-module-again")
    b.recall("near", "import")


def loop(b: Bench) -> None:
    """The reply is on its way when a task blocks the event loop."""
    x = b.made("far", plain, 1000, key="plain-1")
    connected(b, "near", "far")
    b.proxy.arm(Fault("reply", 0.1))
    y = b.submit("near", use, x, key="use-loop")
    b.until_asked()
    wait([y, b.submit("near", inside.block_the_loop, 1.5, key="culprit-1")])
    b.recall("near", "block")


def missing(b: Bench) -> None:
    """Its holder's connection is cut in the middle of the reply, and the scheduler does not answer who else has it."""
    x = b.made("far", plain, 100_000, key="plain-1")
    connected(b, "near", "far")
    b.proxy.arm(Fault("cut", after=256, cut=True))
    y = b.submit("near", use, x, key="use-missing")
    eventually(lambda: "cut" in NOTES, "nobody asked")
    before = len(b.proxy.dials)
    with b.stopped(b.scheduler.program.popen.pid, "scheduler"):
        time.sleep(2.0)
    wait(y)
    NOTES["missing"] = [(NOTES["cut"][0][1], b.proxy.dials[before])]
