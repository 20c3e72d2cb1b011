"""Work on a cluster; prints as JSON how many seconds its steps took.

Arguments: `threads` or `processes` for a LocalCluster of two workers, or a scheduler's address; then steps:
`work:NAME` computes tasks with keys NAME-0 to NAME-9 that pass values between workers, `hold:WORKER` starts one,
WORKER-0, that runs there until its process ends, `wait:COUNT` for workers,
`restart`, `retire:WORKER`, `pids`, `close`.
"""

import json
import logging
import os
import sys
import time
from typing import Any

from distributed import Client, LocalCluster


def number(i: int) -> bytes:
    return bytes(1000 + i)


def total(*parts: bytes) -> int:
    return sum(map(len, parts))


def hold() -> None:
    time.sleep(600)


def work(client: Client, name: str) -> None:
    workers = list(client.scheduler_info()["workers"])
    at = [workers[i % len(workers)] for i in range(9)]
    parts = [client.submit(number, i, key=f"{name}-{i}", workers=[at[i]]) for i in range(9)]
    assert client.submit(total, *parts, key=f"{name}-9").result() == 9036


def start(client: Client, name: str) -> Any:
    workers = client.scheduler_info()["workers"]
    at = next(address for address, worker in workers.items() if str(worker["name"]) == name)
    future = client.submit(hold, key=f"{name}-0", workers=[at])
    while not any(client.processing().values()):
        time.sleep(0.01)
    return future


def local(kind: str) -> Client:
    cluster = LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=kind == "processes",
        dashboard_address=None,
        silence_logs=False,
        host="127.0.0.1",
        protocol="tcp",
    )
    return Client(cluster)


def close(client: Client) -> None:
    client.close()
    if client.cluster is not None:
        client.cluster.close()


def pids(client: Client) -> dict[str, int]:
    """Of this process, and of the workers by name."""
    workers = client.scheduler_info()["workers"]
    return {"client": os.getpid(), **{str(workers[at]["name"]): pid for at, pid in client.run(os.getpid).items()}}


STEPS = {
    "pids": lambda client, _: pids(client),
    "wait": lambda client, count: client.wait_for_workers(int(count)),
    "work": work,
    "hold": start,
    "restart": lambda client, _: client.restart(),
    "retire": lambda client, name: client.retire_workers(names=[name]),
    "close": lambda client, _: close(client),
}


def main(where: str, *steps: str) -> None:
    logging.getLogger("distributed").setLevel(logging.INFO)
    client = Client(where) if "://" in where else local(where)
    told: dict[str, Any] = {}
    kept = []
    for step in steps:
        what, _, name = step.partition(":")
        began = time.monotonic()
        kept.append(STEPS[what](client, name))
        told[step] = kept[-1] if step == "pids" else round(time.monotonic() - began, 3)
    print(json.dumps({**told, "done": time.time()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
