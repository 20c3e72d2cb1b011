"""Memory of a worker that computes a million tasks, and what one live task takes.

    python -m benchmarks.memory [--tasks N] [--bare] [--trace]

The worker is a real one, fed directly (benchmarks/fed.py), with default settings, spans encoded and metrics read every
100 tasks' batch; keys are forgotten as a scheduler would let it. RSS is the whole process; `--trace` adds what Python
allocated in our files (tracemalloc, twice as slow), `--bare` leaves us out.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import tracemalloc
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_worker
from benchmarks.fed import Fed
from benchmarks.life import annotations, provider
from otel_worker import DaskInstrumentor

CHUNK = 1000  # tasks that are fed, computed and forgotten at once
MARKS = (10_000, 100_000, 500_000, 1_000_000)
OURS = str(Path(otel_worker.__file__).parent / "*")


def rss_mib() -> float:
    """Resident set now, not at its peak."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def ours_kib() -> float:
    """What lives now and was allocated by a line of ours."""
    found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern=OURS)])
    return sum(one.size for one in found.statistics("filename")) / 1024


def mark(done: int, begun: float, runtime: Any) -> None:
    gc.collect()
    sizes = [sum(recorder.sizes().values()) for recorder in runtime.by_worker.values()] if runtime is not None else []
    allocated = f"{ours_kib():,.0f}" if tracemalloc.is_tracing() else ""
    seconds = asyncio.get_running_loop().time() - begun
    print(f"| {done:,} | {rss_mib():.1f} | {allocated} | {sum(sizes)} | {seconds:.0f} |", flush=True)


async def measure(tasks: int, *, bare: bool, trace: bool) -> None:
    fed = await Fed.start()
    reader = InMemoryMetricReader()
    runtime = None
    if trace:
        tracemalloc.start()
    if not bare:
        DaskInstrumentor().instrument(tracer_provider=provider(), meter_provider=MeterProvider([reader]))
        await asyncio.sleep(0.01)
        runtime = DaskInstrumentor().runtime
    about = annotations()
    begun = asyncio.get_running_loop().time()
    print("| tasks | RSS, MiB | allocated by us, KiB | open records | s |\n|---|---|---|---|---|")
    for done in range(CHUNK, tasks + 1, CHUNK):
        await fed.run(CHUNK, about)
        if done % 100_000 == 0:
            reader.get_metrics_data()
        if done in MARKS:
            mark(done, begun, runtime)
    fed.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--bare", action="store_true", help="without us")
    parser.add_argument("--trace", action="store_true", help="with tracemalloc")
    chosen = parser.parse_args()
    asyncio.run(measure(chosen.tasks, bare=chosen.bare, trace=chosen.trace))


if __name__ == "__main__":
    main()
