"""Fetches in both directions between two workers; it checks what arrives.

Arguments: the scheduler's address, then pairs of workers' names such as `a,b`; `-NAME` and `+NAME` switch us off and on in
a worker that runs; `p2p` is a P2P rechunk among all workers; `actor:a,b` an actor on one that a task on the other and the
client call, directly and through the scheduler. Prints as JSON how many values arrived.
"""

import json
import sys
from typing import Any

from distributed import Client


def made(i: int, size: int) -> bytes:
    return bytes([i]) * size


def held(*values: bytes) -> list[tuple[int, int]]:
    return [(value[0], len(value)) for value in values]


def switch(on: bool) -> bool:
    from otel_worker import DaskInstrumentor

    instrumentor = DaskInstrumentor()
    (instrumentor.instrument if on else instrumentor.uninstrument)()
    return bool(instrumentor.is_instrumented_by_opentelemetry)


def exchange(client: Client, one: str, other: str, step: int) -> int:
    """Both ways, small values and one large enough to be sent in frames of its own; the client gathers them too."""
    count = 0
    for here, there in ((one, other), (other, one)):
        sizes = (10, 1000, 2_000_000)
        options: dict[str, Any] = {"workers": [here], "pure": False}
        values = [
            client.submit(made, i, size, key=f"made-{step}-{here}-{i}", **options) for i, size in enumerate(sizes)
        ]
        task = client.submit(held, *values, key=f"held-{step}-{there}", workers=[there])
        assert task.result(timeout=20) == [(i, size) for i, size in enumerate(sizes)]
        assert [len(value) for value in client.gather(values)] == list(sizes)
        count += len(sizes)
    return count


def rechunk(step: int) -> int:
    import dask.array as da

    x = da.full((40, 40), step, chunks=(5, 40)).rechunk((40, 5), method="p2p", block_size_limit=1600)
    assert x.sum().compute() == 1600 * step
    return 1


class Counter:
    n = 0

    def add(self, by: int) -> int:
        self.n += by
        return self.n


def calls(counter: Any) -> int:
    counter.add(1).result()
    return int(counter.n)


def actor(client: Client, home: str, other: str, step: int) -> int:
    counter = client.submit(Counter, key=f"counter-p{step}", workers=[home], actor=True).result(timeout=20)
    assert client.submit(calls, counter, key=f"calls-p{step}", workers=[other], pure=False).result(timeout=20) == 1
    for number, client.direct_to_workers in enumerate((True, False)):
        assert counter.add(1).result(timeout=20) == number + 2
        assert counter.n == number + 2
    return 1


def main(address: str, *steps: str) -> None:
    count = 0
    with Client(address, timeout=20) as client:
        workers = {str(info["name"]): at for at, info in client.scheduler_info(n_workers=-1)["workers"].items()}
        for number, step in enumerate(steps):
            if step[0] in "+-":
                (state,) = client.run(switch, step[0] == "+", workers=[workers[step[1:]]]).values()
                assert state is (step[0] == "+")
            elif step == "p2p":
                count += rechunk(number + 1)
            elif step.startswith("actor:"):
                home, other = (workers[name] for name in step.removeprefix("actor:").split(","))
                count += actor(client, home, other, number)
            else:
                one, _, other = step.partition(",")
                count += exchange(client, workers[one], workers[other], number)
    print(json.dumps({"arrived": count}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
