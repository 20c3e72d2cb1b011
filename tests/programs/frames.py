"""Array and dataframe-like work on a cluster that transfers and, with little memory, spills. Argument: the scheduler's address."""

import json
import sys
import time

import dask.array as da
import numpy as np
from dask import delayed
from distributed import Client, Scheduler, wait

ROWS = 100_000


def partition(i: int) -> dict[str, np.ndarray]:
    """Columns by name, as a frame's partition: 1.6 MB."""
    return {"group": (np.arange(ROWS) + i) % 7, "value": np.full(ROWS, float(i))}


def split(frame: dict[str, np.ndarray], group: int) -> dict[str, np.ndarray]:
    chosen = frame["group"] == group
    return {name: column[chosen] for name, column in frame.items()}


def joined(*frames: dict[str, np.ndarray]) -> float:
    return float(sum(frame["value"].sum() for frame in frames))


def grouped(partitions: int, groups: int) -> float:
    """The sum over all groups, shuffled by tasks."""
    frames = [delayed(partition, pure=True)(i) for i in range(partitions)]
    sums = [delayed(joined)(*(delayed(split)(frame, group) for frame in frames)) for group in range(groups)]
    total: float = delayed(sum)(sums).compute()
    return total


def late(n: int) -> np.ndarray:
    time.sleep(0.2)
    return np.ones(n)


def fetched(client: Client) -> int:
    """One fetch over a new connection, from worker a to worker b, and one for which two tasks wait."""
    workers = {info["name"]: at for at, info in client.scheduler_info()["workers"].items()}
    ones = client.submit(np.ones, 1000, key="ones-1", workers=[workers["a"]])
    count = int(client.submit(np.sum, ones, key="sum-1", workers=[workers["b"]]).result())
    shared = client.submit(late, 1000, key="late-1", workers=[workers["a"]])
    both = [client.submit(f, shared, key=f"{f.__name__}-2", workers=[workers["b"]]) for f in (np.sum, np.max)]
    return count + sum(map(int, client.gather(both)))


def block(i: int) -> np.ndarray:
    return np.full(250_000, float(i))


def read_back(client: Client) -> int:
    """Worker a holds more than its memory; worker b fetches the value that was spilled first."""
    workers = {info["name"]: at for at, info in client.scheduler_info()["workers"].items()}
    blocks = client.map(block, range(8), workers=[workers["a"]])
    wait(blocks)
    return int(client.submit(np.min, blocks[0], workers=[workers["b"]]).result())


def computed(dask_scheduler: Scheduler) -> int:
    """How many tasks came into memory on the workers."""
    return sum(prefix.state_counts["memory"] for prefix in dask_scheduler.task_prefixes.values())


def main(address: str) -> None:
    with Client(address) as client:
        client.wait_for_workers(2)
        count = fetched(client) + read_back(client)
        x = da.random.default_rng(1).random((1500, 1500), chunks=(500, 500))  # 2 MB a chunk
        held = x.persist()
        symmetric = float(abs((held + held.T).sum() - 2 * held.sum()).compute())
        total = grouped(8, 7)
        tasks = client.run_on_scheduler(computed)
        del held
    print(json.dumps({"fetched": count, "array": round(symmetric, 6), "frame": total, "tasks": tasks}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
