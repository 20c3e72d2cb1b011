"""What observing costs: CPU of workers, scheduler and client, with us and without, interleaved on live clusters.

    scripts/bench [--quick] [--rounds N] [--variants ours,bare] [--workloads no-op] [--out FILE]

Every variant has a cluster of real processes. All are up at once and stopped by signal, save the one that is measured;
so the machine's slow swings meet all variants alike. A ratio is taken within a round, against the bare cluster of that
round; the table has the median of these ratios and its bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import sink
from benchmarks.clusters import BenchmarkError, Cluster
from benchmarks.spread import spread
from benchmarks.variants import BARE, OURS, QUICK, VARIANTS, Variant
from benchmarks.work import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TASKS = {"no-op": 1000, "10 ms": 60, "transfers": 300, "spill": 400}
WHO = ("workers", "scheduler", "client", "wall")
Samples = dict[tuple[str, str, str], list[float]]  # (workload, variant, who) -> seconds, a round each


class Bench:
    """Measures rounds on clusters that live as long as a generation."""

    def __init__(self, variants: Sequence[Variant], tasks: dict[str, int], folder: Path) -> None:
        self.variants = variants
        self.tasks = tasks
        self.folder = folder
        self.samples: Samples = {}
        self.told: dict[str, Any] = {}
        self.sink = sink.start(folder)

    def generation(self, number: int, rounds: int, until: float) -> None:
        """Start all clusters anew: what differs from process to process (hashes, memory) is drawn again."""
        clusters = []
        try:
            for variant in self.variants:
                place = self.folder / f"{number}-{variant.name.replace(' ', '-')}"
                clusters.append(Cluster(variant, place, self.sink.endpoint))
                clusters[-1].ready()
                self._visit(clusters[-1], {name: count // 4 for name, count in self.tasks.items()})  # warm it up
                clusters[-1].pause()
            begun = time.monotonic()
            for index in range(rounds):
                if index and time.monotonic() + (time.monotonic() - begun) / index > until:
                    break
                self._round(clusters, index)
            for cluster in clusters:
                cluster.resume()
                self.told[cluster.variant.name] = cluster.order("tell")
        finally:
            with ThreadPoolExecutor(len(clusters) or 1) as pool:
                list(pool.map(Cluster.kill, clusters))

    def _round(self, clusters: list[Cluster], index: int) -> None:
        """Each cluster once; who comes first is another one each time."""
        first = index * 2 % len(clusters)
        for cluster in clusters[first:] + clusters[:first]:
            cluster.resume()
            for workload, spent in self._visit(cluster, self.tasks):
                for who, seconds in spent.items():
                    self.samples.setdefault((workload, cluster.variant.name, who), []).append(seconds)
            cluster.pause()

    @staticmethod
    def _visit(cluster: Cluster, tasks: dict[str, int]) -> list[tuple[str, dict[str, float]]]:
        cluster.order("settle")
        measured = []
        for workload, count in tasks.items():
            before = cluster.cpu()
            answer = cluster.order(workload, tasks=count)
            after = cluster.cpu()
            measured.append((workload, {who: after[who] - before[who] for who in after} | answer))
        return measured

    def close(self) -> None:
        self.sink.kill()


def ratios(samples: Samples, workload: str, variant: str, who: str) -> list[float]:
    """What `variant` took beyond bare, round by round, in percent."""
    ours, bare = samples[workload, variant, who], samples[workload, BARE.name, who]
    return [(a / b - 1) * 100 for a, b in zip(ours, bare, strict=True)]


def table(samples: Samples, variants: Sequence[Variant], tasks: dict[str, int]) -> Iterator[str]:
    """Markdown: a table a workload."""
    for workload, count in tasks.items():
        yield f"\n### {workload}: {count} tasks\n"
        yield f"| variant | {' | '.join(f'{who} µs a task | beyond bare' for who in WHO)} |"
        yield "|---" * (1 + 2 * len(WHO)) + "|"
        for variant in variants:
            cells = []
            for who in WHO:
                cells.append(f"{spread(samples[workload, variant.name, who]).median / count * 1e6:,.0f}")
                if variant is BARE:
                    cells.append("")
                    continue
                found = spread(ratios(samples, workload, variant.name, who))
                cells.append(f"{found.median:+.1f} % ({found.low:+.1f} to {found.high:+.1f})")
            yield f"| {variant.name} | {' | '.join(cells)} |"


def legend(variants: Sequence[Variant], told: dict[str, Any]) -> Iterator[str]:
    yield "\n| variant | what | spans of a worker, by outcome | metrics, CPU ms an export | annotation in the scheduler, bytes |"
    yield "|---|---|---|---|---|"
    for variant in variants:
        about = told.get(variant.name, {})
        spans = "; ".join(", ".join(f"{v:,} {k}" for k, v in one.items() if v) for one in about.get("spans", ()))
        exports = ", ".join(f"{seconds * 1e3:.0f}" for seconds in about.get("metrics", ()))
        size = about.get("scheduler", {})
        yield f"| {variant.name} | {variant.about} | {spans} | {exports} | {size.get('memory', 0)} |"


def chosen(names: str, known: Sequence[str], what: str) -> list[str]:
    wanted = [name.strip() for name in names.split(",")] if names else list(known)
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"overhead: no {what} is called {', '.join(unknown)}; there are {', '.join(known)}")
    return wanted


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within three minutes: fewer variants and rounds")
    parser.add_argument("--rounds", type=int, help="rounds a generation at most (default 8; quick: 4)")
    parser.add_argument("--minutes", type=float, help="no round begins that would end later (default 11; quick: 2.5)")
    parser.add_argument("--generations", type=int, help="how often all clusters are started anew (default 2; quick: 1)")
    parser.add_argument("--variants", default="", help="comma-separated; bare is always among them")
    parser.add_argument("--workloads", default="", help="comma-separated")
    parser.add_argument("--against", type=Path, help="a folder with another version of us, measured beside this one")
    parser.add_argument("--out", type=Path, help="write every sample as JSON to this file")
    return parser.parse_args()


def measure(bench: Bench, generations: int, rounds: int, minutes: float) -> None:
    begun = time.monotonic()
    for generation in range(generations):
        bench.generation(generation, rounds, begun + 60 * minutes * (generation + 1) / generations)
        print(f"generation {generation + 1} of {generations}: {time.monotonic() - begun:.0f} s", file=sys.stderr)


def main() -> None:
    asked = arguments()
    known = [variant.name for variant in VARIANTS]
    names = chosen(asked.variants or (",".join(QUICK) if asked.quick else ""), known, "variant")
    variants = [variant for variant in VARIANTS if variant is BARE or variant.name in names]
    if asked.against:
        variants.append(replace(OURS, name="ours before", about=f"the code in {asked.against}", source=asked.against))
    tasks = {name: TASKS[name] for name in chosen(asked.workloads, list(WORKLOADS), "workload")}
    rounds, generations = asked.rounds or (4 if asked.quick else 8), asked.generations or (1 if asked.quick else 2)
    folder = Path(tempfile.mkdtemp(prefix="otel-worker-bench-"))
    try:
        bench = Bench(variants, tasks, folder)
        try:
            measure(bench, generations, rounds, asked.minutes or (2.5 if asked.quick else 11))
        finally:
            bench.close()
    except BenchmarkError as error:
        sys.exit(f"overhead: {error}")
    print(f"Spans and metrics went to {bench.sink.name}.")
    print("\n".join([*table(bench.samples, variants, tasks), *legend(variants, bench.told)]))
    if asked.out:
        samples = [
            {"workload": workload, "variant": variant, "who": who, "tasks": tasks[workload], "seconds": seconds}
            for (workload, variant, who), seconds in bench.samples.items()
        ]
        asked.out.write_text(json.dumps({"sink": bench.sink.name, "samples": samples, "told": bench.told}, indent=1))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
