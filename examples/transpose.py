"""Adds matrices to their transposes: every worker needs blocks that others have. The scheduler's address is the argument.

Several, with pauses: Jaeger's Monitor tab draws rates, and a rate is seen between two looks.
"""

import sys
import time

import dask.array as da
from distributed import Client

SIDE, BLOCK = 4000, 500  # 64 blocks of 2 MB
ROUNDS, PAUSE = 4, 5.0


def main(scheduler: str) -> None:
    with Client(scheduler) as client:
        client.wait_for_workers(2)
        for seed in range(ROUNDS):
            x = da.random.default_rng(seed).random((SIDE, SIDE), chunks=(BLOCK, BLOCK)).persist()
            print(f"mean {(x + x.T).mean().compute():.3f}", flush=True)
            time.sleep(PAUSE)
        print("Now look for operations that begin with 'fetch' in Jaeger, and at its Monitor tab.")


if __name__ == "__main__":
    main(sys.argv[1])
