"""The work of `otel-worker demo`: a peer that is slow, one that is busy, one that is blocked, spilling, and producers that overtake.

Run as a program under `opentelemetry-instrument`, with the scheduler's address and the delay in seconds as arguments.
"""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client, Future

BLOCK = 8_000_000  # bytes; below the offload threshold of 10 MB, so that pickling blocks the event loop
ROUNDS = 4
PRODUCED = 3  # tasks a round that need nothing, on the worker that waits
BUSY_WITH = 2  # requests that the busy one serves at once
HANDED_OUT = 4  # values that somebody wants of it meanwhile
HELD = 3  # delays that the event loop of the blocked one is held for


class Slow:
    """A value that takes `delay` seconds to unpickle, wherever that happens: read from disk, or received."""

    def __init__(self, delay: float, data: bytes) -> None:
        self.delay = delay
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle_slowly, (self.delay, self.data)

    def __sizeof__(self) -> int:
        return len(self.data)


def unpickle_slowly(delay: float, data: bytes) -> Slow:
    time.sleep(delay)
    return Slow(delay, data)


def load(seed: int, size: int = BLOCK) -> bytes:
    """A block that does not compress."""
    return random.Random(seed).randbytes(size)  # noqa: S311 - data, not a secret


def load_slow(seed: int, delay: float, size: int = BLOCK // 8) -> Slow:
    return Slow(delay, load(seed, size))


def produce(seed: int, seconds: float) -> bytes:
    """What needs no data runs while others wait for theirs."""
    time.sleep(seconds)
    return load(seed, BLOCK // 8)


def combine(*blocks: Any) -> bytes:
    """Something as large as one block."""
    data = [block.data if isinstance(block, Slow) else block for block in blocks]
    return bytes(max(data, key=len))


def use(*blocks: Any) -> int:
    return sum(len(block.data) if isinstance(block, Slow) else len(block) for block in blocks)


async def hold(seconds: float) -> None:
    """What no coroutine should do: the event loop, on which it runs, does nothing else meanwhile."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is the fault


class Work:
    """Its steps, each of which shows one thing, on workers by their names."""

    def __init__(self, client: Client, delay: float) -> None:
        self.client = client
        self.delay = delay
        workers = client.scheduler_info(n_workers=-1)["workers"]
        self.addresses = {worker["name"]: address for address, worker in workers.items()}

    def submit(self, worker: str, function: Any, *arguments: Any, key: str) -> Future:
        return self.client.submit(function, *arguments, key=key, workers=[self.addresses[worker]])

    def slow_peer(self) -> None:
        """Alice combines what bob and carol loaded. Carol's slow values go to her disk before alice asks for them."""
        from distributed import wait

        combined = []
        for i in range(ROUNDS):
            slow = self.submit("carol", load_slow, i, self.delay, key=f"load_slow-{i}")
            wait(slow)
            peers = enumerate(("bob", "carol", "carol", "carol"))
            blocks = [self.submit(peer, load, 100 * i + j, key=f"load-{i}-{j}") for j, peer in peers]
            wait(blocks)
            combined.append(self.submit("alice", combine, *blocks, slow, key=f"combine-{i}"))
            made = [
                self.submit("alice", produce, 10 * i + j, self.delay / 4, key=f"produce-{i}-{j}")
                for j in range(PRODUCED)
            ]
            wait([*combined, *made])
        wait(self.submit("bob", use, *combined, key="total-0"))

    def busy_peer(self) -> None:
        """Bob serves two at once: while alice and dave unpickle what he sent, he tells carol that he is busy."""
        from distributed import wait

        large = [
            self.submit("bob", load_slow, i, 1.5 * self.delay, BLOCK // 80, key=f"large-{i}") for i in range(BUSY_WITH)
        ]
        small = [self.submit("bob", load, 10 + i, BLOCK // 80, key=f"small-{i}") for i in range(HANDED_OUT)]
        wait([*large, *small])
        takers = zip(("alice", "dave"), large, strict=True)
        taken = [self.submit(name, use, value, key=f"take-{name}") for name, value in takers]
        time.sleep(min(self.delay / 3, 0.1))  # so that bob has begun to serve them
        wait([*taken, *(self.submit("carol", use, value, key=f"ask-{i}") for i, value in enumerate(small))])

    def blocked_peer(self) -> None:
        """Alice asks dave for a value while a coroutine of his holds the event loop, which should answer."""
        from distributed import wait

        first, second = (self.submit("dave", load, 7 + i, BLOCK // 8, key=f"measure-{i}") for i in range(2))
        wait(self.submit("alice", use, first, key="report-0"))  # so that they are connected
        wait(second)
        held = self.submit("dave", hold, HELD * self.delay, key="hold-0")
        wait([held, self.submit("alice", use, second, key="report-1")])


def main(scheduler: str, delay: float, workers: int) -> None:
    from distributed import Client

    with Client(scheduler) as client:
        client.wait_for_workers(workers)
        work = Work(client, delay)
        work.slow_peer()
        work.busy_peer()
        work.blocked_peer()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
