"""Adds a matrix to its transpose: every worker needs blocks that others have. The scheduler's address is the argument."""

import sys

import dask.array as da
from distributed import Client

SIDE, BLOCK = 4000, 500  # 64 blocks of 2 MB


def main(scheduler: str) -> None:
    with Client(scheduler) as client:
        client.wait_for_workers(2)
        x = da.random.default_rng(seed=1).random((SIDE, SIDE), chunks=(BLOCK, BLOCK)).persist()
        mean = (x + x.T).mean().compute()
        print(f"mean {mean:.3f}; now look for operations that begin with 'fetch' in Jaeger")


if __name__ == "__main__":
    main(sys.argv[1])
