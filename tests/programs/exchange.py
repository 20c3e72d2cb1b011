"""Fetches in both directions between two workers; it checks what arrives.

Arguments: the scheduler's address, then pairs of workers' names such as `a,b`; `-NAME` and `+NAME` switch us off and on in
a worker that runs. Prints as JSON how many values arrived.
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


def main(address: str, *steps: str) -> None:
    count = 0
    with Client(address, timeout=20) as client:
        workers = {str(info["name"]): at for at, info in client.scheduler_info(n_workers=-1)["workers"].items()}
        for number, step in enumerate(steps):
            if step[0] in "+-":
                (state,) = client.run(switch, step[0] == "+", workers=[workers[step[1:]]]).values()
                assert state is (step[0] == "+")
            else:
                one, _, other = step.partition(",")
                count += exchange(client, workers[one], workers[other], number)
    print(json.dumps({"arrived": count}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
