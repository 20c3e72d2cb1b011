"""The client process of one benchmarked cluster: it takes orders as lines of JSON and answers each with one line.

python -m benchmarks.driver SCHEDULER
{"do": "no-op", "tasks": 1000}    run a workload, and export the spans that it left
{"do": "settle"}                  run no-op tasks until the workers' budgets for spans are empty
{"do": "facts only"}              take the observers away: facts go nowhere
{"do": "tell"}                    what the workers counted
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from distributed import Client
from opentelemetry import metrics, trace

from benchmarks import work

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLE = 300  # tasks a step
ENOUGH = 20  # steps


def runtime() -> Any:
    """What of ours is switched on in this process, or None."""
    module = sys.modules.get("otel_worker.instrumentor")
    return module.DaskInstrumentor().runtime if module is not None else None


def flush() -> None:
    """Export the spans of this process, whoever made them."""
    provider = trace.get_tracer_provider()
    if hasattr(provider, "force_flush"):
        provider.force_flush()


def flush_metrics() -> float:
    """Export all metrics once; return the CPU time of it."""
    provider = metrics.get_meter_provider()
    if not hasattr(provider, "force_flush"):
        return 0.0
    begun = time.process_time()
    provider.force_flush()
    return time.process_time() - begun


def is_observed() -> bool:
    ours = runtime()
    return ours is not None and bool(ours.by_worker)


def drop_observers() -> None:
    for recorder in runtime().by_worker.values():
        recorder.observers.clear()


def told() -> dict[str, int]:
    ours = runtime()
    counted: dict[str, int] = {}
    for spans in ours.spans.values() if ours is not None else ():
        counted |= spans.emitter.budget.spans
    return counted


def recorded() -> int:
    return told().get("recorded", 0)


def annotation_size(dask_scheduler: Any) -> dict[str, int]:
    """Bytes that one task's annotation takes in the scheduler's memory and in the message to the worker."""
    import msgpack

    for task in dask_scheduler.tasks.values():
        if task.annotations:
            return {"memory": sys.getsizeof(task.annotations), "message": len(msgpack.packb(task.annotations))}
    return {"memory": 0, "message": 0}


def settle(client: Client) -> int:
    """Return after how many steps only a few of a step's tasks still have spans of their own."""
    for step in range(1, ENOUGH + 1):
        before = client.run(recorded)
        work.noop(client, SETTLE)
        if all(now - before[worker] < SETTLE for worker, now in client.run(recorded).items()):
            return step
    return ENOUGH


def scheduler_bytes(client: Client) -> dict[str, int]:
    held = client.map(work.nothing, range(2), key="held", pure=False)
    work.done(held)
    return dict(client.run_on_scheduler(annotation_size))


def run(client: Client, order: dict[str, Any]) -> dict[str, Any]:
    """Run a workload and export what it left; the answer has the wall time of the workload alone."""
    begun = time.perf_counter()
    work.WORKLOADS[order["do"]](client, order["tasks"])
    wall = time.perf_counter() - begun
    client.run(flush)
    flush()
    return {"wall": wall}


ORDERS: dict[str, Callable[[Client, dict[str, Any]], Any]] = {
    **dict.fromkeys(work.WORKLOADS, run),
    "settle": lambda client, _: settle(client),
    "observed": lambda client, _: list(client.run(is_observed).values()),
    "facts only": lambda client, _: client.run(drop_observers) and None,
    "tell": lambda client, _: {
        "spans": list(client.run(told).values()),
        "metrics": list(client.run(flush_metrics).values()),
        "scheduler": scheduler_bytes(client),
    },
}


def main() -> None:
    with Client(sys.argv[1]) as client:
        client.wait_for_workers(2)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps(ORDERS[order["do"]](client, order)), flush=True)


if __name__ == "__main__":
    main()
