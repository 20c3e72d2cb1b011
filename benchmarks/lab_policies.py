"""The numbers of docs/fetch-policies.md, as Markdown on standard output: python benchmarks/lab_policies.py [PART …]."""

import argparse
import contextlib
import gc
import resource
import subprocess
import sys
import time

from otel_worker.lab.demand import Case, Need, arrivals, backlog, compute
from otel_worker.lab.policies import POLICIES
from otel_worker.lab.results import evaluate
from otel_worker.lab.settings import apply
from otel_worker.lab.simulation import Run
from otel_worker.lab.task_first import LegacyDeferred
from otel_worker.lab.workloads import WORKLOADS, Size, generate

TASK_FIRST = "global-priority-connections"
SHOWN = [*POLICIES, TASK_FIRST]
SHORT = {"global-priority-connections": "1B by connections"}


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def result(case, policy, **options):
    LegacyDeferred.WALK = 100  # the same requests; the quadratic walk is measured in `cpu`
    return evaluate(policy, Run(case, policy, cpu=False, **options).run().facts)


def ms(value):
    return "-" if value is None else f"{value * 1e3:,.0f}" if value >= 0.1 else f"{value * 1e3:.1f}"


def workloads(size):
    """Every policy on every workload: mean wait / last task ready / requests."""
    rows = []
    for policy in SHOWN:
        row = [SHORT.get(policy, policy)]
        for name in WORKLOADS:
            got = result(generate(name, size), policy, operations=False)
            row.append(f"{ms(got.mean_wait)} / {ms(got.last_ready)} / {got.requests:,}")
        rows.append(row)
    table(["policy", *WORKLOADS], rows)


def one_worker():
    print("## One deciding worker of 20, 400 keys of 1 MB: mean wait ms / last ready ms / requests\n")
    workloads(Size())


def all_workers():
    print("## All 20 workers decide, 40 keys each: mean wait ms / last ready ms / requests\n")
    workloads(Size(deciding=20, keys=40))


VARIED = {
    "message limit": ["1 MB", "5 MB", "50 MB", "none"],
    "connections": ["2", "10", "50"],
    "byte limit": ["5 MB", "50 MB", "none"],
}


def limits():
    print("## Limits varied, one deciding worker: mean wait ms / last ready ms\n")
    policies = ["current", "global-priority", TASK_FIRST, "late-binding"]
    for name, values in VARIED.items():
        print(f"### {name}\n")
        rows = []
        for workload in WORKLOADS:
            for policy in policies:
                got = [
                    result(apply(generate(workload, Size()), name, value), policy, operations=False) for value in values
                ]
                rows.append(
                    [workload, SHORT.get(policy, policy), *(f"{ms(g.mean_wait)} / {ms(g.last_ready)}" for g in got)]
                )
        table(["workload", "policy", *(f"{name} {value}" for value in values)], rows)


def slow_network():
    print("## Latency 10 ms, one deciding worker, keys of 100 kB: mean wait ms / last ready ms / requests\n")
    rows = []
    for workload in [name for name in ("all-to-all", "skewed-sizes", "staggered") if name in WORKLOADS]:
        for policy in ("current", TASK_FIRST, "late-binding"):
            case = apply(generate(workload, Size(nbytes=100_000)), "latency", "10 ms")
            got = [
                result(apply(case, "message limit", value), policy, operations=False)
                for value in VARIED["message limit"]
            ]
            cells = (f"{ms(g.mean_wait)} / {ms(g.last_ready)} / {g.requests:,}" for g in got)
            rows.append([workload, SHORT.get(policy, policy), *cells])
    table(["workload", "policy", *(f"message limit {value}" for value in VARIED["message limit"])], rows)


def queue(keys, peers):
    """Keys of 1 MB on peers in turn, each with its own priority, all queued before the first decision."""
    names = [f"p{i:04}" for i in range(peers)]
    tasks = [
        compute(f"t-{i:06}", [Need(f"x-{i:06}", 1_000_000, (names[i % peers],))], priority=(i,)) for i in range(keys)
    ]
    return Case("queue", tuple(arrivals(backlog(tasks))))


def cpu():
    """Decisions and whole stimuli from a standing queue to the last key, without counting or plugins' time taken off."""
    print("## CPU of a stimulus, µs: the decision / all of it; heap operations of a decision\n")
    shapes = [(100, 10), (1_000, 10), (1_000, 100), (1_000, 1_000), (10_000, 100), (10_000, 1_000)]
    rows = []
    for policy in SHOWN:
        row = [SHORT.get(policy, policy)]
        for keys, peers in shapes:
            row.append(decision_cost(policy, keys, peers))
        rows.append(row)
    table(["policy", *(f"{keys:,} keys, {peers:,} peers" for keys, peers in shapes)], rows)


def blocked():
    """A task a message, while all holders are in flight: nobody can be asked, and the queue grows."""
    print("## CPU of a decision, µs, while nobody can be asked (many-tiny-keys, 20 workers); heap operations\n")
    LegacyDeferred.WALK = 1_000_000  # all of it
    rows = []
    for policy in SHOWN:
        row = [SHORT.get(policy, policy)]
        for keys in (25, 50, 100):
            case = generate("many-tiny-keys", Size(keys=keys))
            gc.collect()
            timed = evaluate(policy, Run(case, policy, operations=False).run().facts)
            counted = evaluate(policy, Run(case, policy, cpu=False).run().facts)
            row.append(f"{timed.decision_cpu_a_stimulus * 1e6:,.0f}; {counted.heap_operations_a_stimulus:,.0f}")
        rows.append(row)
    table(["policy", "250 keys", "500 keys", "1,000 keys"], rows)


#: stimuli after which a measurement of CPU ends: by then the queue is still long
ENOUGH = 60


class EnoughSeenError(Exception):
    """Ends a measurement."""


class Watched:
    """A run that ends after enough answers, and remembers the counts from before the first: the filling of the queue."""

    def __init__(self, case, policy, **options):
        self.run = Run(case, policy, **options)
        (self.worker,) = self.run.workers.values()
        self.handle, self.worker.handle = self.worker.handle, self.watch
        self.answers = 0
        with contextlib.suppress(EnoughSeenError):
            self.run.run()

    def watch(self, event):
        if type(event).__name__.startswith("GatherDep"):
            if not self.answers:
                self.before = self.counts()
            self.answers += 1
            if self.answers > ENOUGH:
                raise EnoughSeenError
        self.handle(event)

    def counts(self):
        state = self.worker.state
        names = ("decision_seconds", "stimulus_seconds", "heap_operations")
        return [self.worker.facts.stimuli, *(getattr(state, name, 0) for name in names)]

    def a_stimulus(self):
        stimuli, *rest = (after - before for after, before in zip(self.counts(), self.before, strict=True))
        return [each / stimuli for each in rest]


def decision_cost(policy, keys, peers):
    """Means over the first answers to a standing queue: the queue is as long as said. Heap operations are counted apart."""
    LegacyDeferred.WALK = 1_000_000  # all of it
    gc.collect()
    decision, whole, _ = Watched(queue(keys, peers), policy, operations=False).a_stimulus()
    *_, operations = Watched(queue(keys, peers), policy, cpu=False).a_stimulus()
    return f"{decision * 1e6:,.0f} / {whole * 1e6:,.0f}; {operations:,.0f}"


SCALES = [
    ("all-to-all", 1_000, 1, 10_000),
    ("skewed-sizes", 1_000, 1_000, 20),
    ("broadcast", 1_000, 1_000, 20),
    ("tree-reduction", 1_000, 1_000, 10_000),
]


def scale():
    """Each in a process of its own, so that memory is that of one run."""
    print("## 1,000 workers under `current`: what the lab itself costs\n")
    rows = []
    for shape in SCALES:
        command = [sys.executable, __file__, "--one", *map(str, shape)]
        rows.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    table(["workload", "workers", "deciding", "keys each", "requests", "keys", "CPU s", "memory MB"], rows)


def one(workload, workers, deciding, keys):
    start = time.process_time()
    case = generate(workload, Size(workers=int(workers), deciding=int(deciding), keys=int(keys)))
    got = evaluate("current", Run(case, "current").run().facts)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(workload, workers, deciding, keys, got.requests, got.keys, f"{time.process_time() - start:.1f}", memory)


PARTS = {
    "workloads": one_worker,
    "all": all_workers,
    "limits": limits,
    "latency": slow_network,
    "cpu": cpu,
    "blocked": blocked,
    "scale": scale,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--only", action="append", help="a workload; may be repeated")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(*arguments.one)
        return
    if arguments.only:
        for name in set(WORKLOADS) - set(arguments.only):
            del WORKLOADS[name]
    for part in arguments.parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
