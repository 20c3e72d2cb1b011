"""Ten times the tasks at once, ten times the cost and no more.

    python -m benchmarks.scaling [--sizes 1000,10000,100000]

All tasks of a size are on a fed worker (benchmarks/fed.py) at the same time; what observing adds to each must stay.
"""

from __future__ import annotations

import argparse
import asyncio

from benchmarks.fed import Fed
from benchmarks.life import annotations, switch_off, switch_on
from benchmarks.pinned import pin

LEVEL = "facts, metrics, coalescing"
ROUNDS = 3


async def measure(sizes: list[int]) -> None:
    fed = await Fed.start()
    about = annotations()
    await fed.run(1000, about)
    print("| tasks at once | bare, µs a task | with us | beyond |\n|---|---|---|---|")
    for size in sizes:
        found: dict[str, list[float]] = {"bare": [], LEVEL: []}
        for _ in range(ROUNDS):
            for level, us in found.items():
                await switch_on(level)
                await fed.run(200, about)
                us.append(await fed.cpu(size, about))
                switch_off()
        bare, ours = (min(us) for us in found.values())
        print(f"| {size:,} | {bare:.0f} | {ours:.0f} | {ours - bare:.0f} |", flush=True)
    fed.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    chosen = parser.parse_args()
    pin()
    asyncio.run(measure([int(size) for size in chosen.sizes.split(",")]))


if __name__ == "__main__":
    main()
