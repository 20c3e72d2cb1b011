"""What the benchmarked clusters do. Workers import it: functions travel by name, the same for every variant."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distributed import Client, Future

BYTES = 100_000  # of a value that is spilled: small enough that the hooks show beside the disk
CHAINS = 2


def nothing(*_: Any) -> None:
    """A task that does nothing: all that is measured is what surrounds it."""


def ten_ms_of_cpu(_: int) -> None:
    """Take this thread's CPU for 10 ms, whatever else runs."""
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass


def value(_: int) -> bytes:
    """Bytes that no compression makes smaller."""
    return os.urandom(BYTES)


def noop(client: Client, tasks: int) -> None:
    """`tasks` independent tasks in one graph, as a collection would submit them."""
    done(client.map(nothing, range(tasks), key="noop", pure=False))


def ten_ms(client: Client, tasks: int) -> None:
    """Tasks of 10 ms of CPU each."""
    done(client.map(ten_ms_of_cpu, range(tasks), key="ten_ms", pure=False))


def transfers(client: Client, tasks: int) -> None:
    """Chains that go back and forth between two workers: a task fetches one small value by a request of its own."""
    workers = sorted(client.scheduler_info()["workers"])
    name = os.urandom(8).hex()
    steps = tasks // CHAINS
    graph: dict[str, Any] = {}
    place: dict[str, list[str]] = {}
    for chain in range(CHAINS):
        for step in range(steps):
            key = f"transfer-{name}-{chain}-{step}"
            graph[key] = (nothing, f"transfer-{name}-{chain}-{step - 1}") if step else (nothing,)
            place[key] = [workers[(step + chain) % 2]]
    layer = MaterializedLayer(graph, annotations={"workers": place.__getitem__})
    last = [f"transfer-{name}-{chain}-{steps - 1}" for chain in range(CHAINS)]
    done(client.get(HighLevelGraph({name: layer}, {name: set()}), last, sync=False))


def spill(client: Client, tasks: int) -> None:
    """Half of the tasks make values that don't all fit into memory, the other half read them back."""
    values = client.map(value, range(tasks // 2), key="make", pure=False)
    wait(values)
    done(client.map(nothing, values, key="read", pure=False))


WORKLOADS: dict[str, Callable[[Client, int], None]] = {
    "no-op": noop,
    "10 ms": ten_ms,
    "transfers": transfers,
    "spill": spill,
}


def done(futures: Sequence[Future]) -> None:
    """Wait for them; what the tasks return stays where it is and is released with the futures."""
    wait(futures)
    failed = [future for future in futures if future.status != "finished"]
    if failed:
        raise RuntimeError(f"{len(failed)} tasks failed, the first of them: {failed[0].exception()!r}")
