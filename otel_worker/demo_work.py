"""The work of `otel-worker demo`: transfers, spilling, and one peer whose values are slow to unpickle.

Run as a program under `opentelemetry-instrument`, with the scheduler's address and the delay in seconds as arguments.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

BLOCK = 8_000_000  # bytes; below the offload threshold of 10 MB, so that pickling blocks the event loop
ROUNDS = 4


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


def load(seed: int) -> bytes:
    """A block that does not compress."""
    return random.Random(seed).randbytes(BLOCK)  # noqa: S311 - data, not a secret


def load_slow(seed: int, delay: float) -> Slow:
    return Slow(delay, load(seed)[: BLOCK // 8])


def combine(*blocks: Any) -> bytes:
    """Something as large as one block."""
    data = [block.data if isinstance(block, Slow) else block for block in blocks]
    return bytes(max(data, key=len))


def size(*blocks: bytes) -> int:
    return sum(map(len, blocks))


def main(scheduler: str, delay: float) -> None:
    """Alice combines what bob and carol loaded. Carol's slow values go to her disk before alice asks for them."""
    from distributed import Client, wait

    with Client(scheduler) as client:
        client.wait_for_workers(3)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        names = {worker["name"]: address for address, worker in workers.items()}
        combined = []
        for i in range(ROUNDS):
            slow = client.submit(load_slow, i, delay, key=f"load_slow-{i}", workers=[names["carol"]])
            wait(slow)
            blocks = [
                client.submit(load, 100 * i + j, key=f"load-{i}-{j}", workers=[names[peer]])
                for j, peer in enumerate(("bob", "carol", "carol", "carol"))
            ]
            wait(blocks)
            combined.append(client.submit(combine, *blocks, slow, key=f"combine-{i}", workers=[names["alice"]]))
            wait(combined)
        print(client.submit(size, *combined, key="size-0", workers=[names["bob"]]).result(), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
