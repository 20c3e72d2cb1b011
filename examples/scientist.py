"""An ordinary day's work on a cluster: a dataframe shuffle, an array rechunk, persist, futures in futures, an actor, and a
computation that is given up. Argument: the scheduler's address.
"""

import sys
import time

import dask.array as da
import numpy as np
import pandas as pd
from dask import dataframe as dd
from distributed import Client, get_client, wait

ROWS, PARTITIONS = 40_000, 12
SIDE, BLOCK = 2400, 400


def partition(number: int) -> pd.DataFrame:
    """What a day's file would hold."""
    random = np.random.default_rng(number)
    return pd.DataFrame({"customer": random.integers(0, 500, ROWS), "amount": random.random(ROWS)})


def per_customer() -> float:
    """Orders that arrived by day, shuffled by customer."""
    frame = dd.from_map(partition, range(PARTITIONS))
    return float(frame.shuffle("customer").amount.sum().compute())


def rows_to_columns() -> float:
    """An array in rows becomes one in columns, and stays in the workers' memory."""
    x = da.random.default_rng(0).random((SIDE, SIDE), chunks=(BLOCK, SIDE))
    columns = x.rechunk((SIDE, BLOCK)).persist()
    wait(columns)
    return float((columns + 1).mean().compute())


def square(number: int) -> int:
    time.sleep(0.02)
    return number**2


def sum_of_squares(count: int) -> int:
    """A task that submits tasks."""
    client = get_client()
    return sum(client.gather(client.map(square, range(count))))


class Counter:
    """An actor."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count


def counted(client: Client) -> int:
    counter = client.submit(Counter, actor=True).result()
    return max(counter.add(number).result() for number in range(10))


def given_up(client: Client) -> None:
    """The first guess was wrong: what has begun is cancelled."""
    futures = client.map(time.sleep, [0.3 + i / 1000 for i in range(20)])
    time.sleep(0.1)
    client.cancel(futures)


def main(scheduler: str) -> None:
    with Client(scheduler) as client:
        client.wait_for_workers(2)
        print(f"amounts {per_customer():.0f}", flush=True)
        print(f"mean {rows_to_columns():.3f}", flush=True)
        print(f"squares {client.submit(sum_of_squares, 10).result()}", flush=True)
        print(f"counted {counted(client)}", flush=True)
        given_up(client)


if __name__ == "__main__":
    main(sys.argv[1])
