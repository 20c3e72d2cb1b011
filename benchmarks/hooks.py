"""What each hook of the table costs a call, beyond the function of Dask's that it stands for.

    python -m benchmarks.hooks [--rounds N] [--calls N] [--hook NAME]

The replacement is made around a function that does nothing and called with Dask's own objects, as Dask calls it; so is
the function itself, in turns. CPU time of this thread; code and data are warm here, in a live worker they cost several
times that. benchmarks/life.py measures all of them together.
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import median
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.calls import CASES, Case, Place
from benchmarks.fed import Fed
from benchmarks.life import annotations
from benchmarks.pinned import pin
from otel_worker import DaskInstrumentor
from otel_worker.hooks import TABLE, Hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_worker.patches import Patch


class Cost(NamedTuple):
    """ns a call beyond the original."""

    least: float
    median: float


def timed(acts: list[Callable[[Any], Any]], function: Any) -> float:
    """Return ns a call."""
    begun = thread_time_ns()
    for act in acts:
        act(function)
    return (thread_time_ns() - begun) / len(acts)


def cost(case: Case, hook: str, hooks: Hooks, place: Place, rounds: int, calls: int) -> Cost:
    replacement = hooks.make(hook, case.original)
    beyond = []
    for _ in range(rounds):
        bare = timed(case.acts(place, calls), case.original)
        beyond.append(timed(case.acts(place, calls), replacement) - bare)
    place.clear()
    return Cost(min(beyond), median(beyond))


def line(row: Patch, case: Case, found: Cost) -> str:
    return f"| `{row.target}` | {case.when} | {found.least:,.0f} | {found.median:,.0f} |"


async def measure(wanted: str, rounds: int, calls: int) -> None:
    fed = await Fed.start()
    DaskInstrumentor().instrument(span_budget=0.0, span_burst=0.0)
    await asyncio.sleep(0.01)
    runtime = DaskInstrumentor().runtime
    assert runtime is not None
    await fed.run(500, annotations())
    place = Place(fed.worker, runtime, annotations())
    hooks = Hooks(runtime)
    print("| hook | called | ns beyond, least | median |\n|---|---|---|---|")
    rows = [row for row in TABLE if wanted in ("", row.hook)]
    for row in rows:
        for case in CASES.get(row.hook, ()):
            print(line(row, case, cost(case, row.hook, hooks, place, rounds, calls)), flush=True)
    rare = [f"`{row.target}`" for row in rows if row.hook not in CASES]
    print(f"\nNot called for each task or fetch, and not measured: {', '.join(rare)}.")
    if runtime.guard.failures:
        name, error = runtime.guard.failures[0]
        raise RuntimeError(f"{name} failed: what was measured is nothing") from error
    DaskInstrumentor().uninstrument()
    fed.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--hook", default="", help="measure this hook alone")
    chosen = parser.parse_args()
    pin()
    asyncio.run(measure(chosen.hook, chosen.rounds, chosen.calls))


if __name__ == "__main__":
    main()
