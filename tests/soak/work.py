"""Random graphs: layers of tasks that are slow, large, async, fail, secede or submit others."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from distributed import secede, worker_client

if TYPE_CHECKING:
    import random

    from distributed import Client, Future


class Large:
    """A value that claims to weigh more than it does: spilling comes early, memory stays small."""

    def __init__(self, nbytes: int, claims: int) -> None:
        self.payload = b"x" * nbytes
        self.claims = claims

    def __sizeof__(self) -> int:
        return self.claims


def make(seconds: float, nbytes: int, claims: int, *_: object) -> Large:
    time.sleep(seconds)
    return Large(nbytes, claims)


async def wait_a_moment(seconds: float, *_: object) -> int:
    await asyncio.sleep(seconds)
    return 1


def fail(*_: object) -> None:
    raise ValueError("it had to be")


def leave(seconds: float, *_: object) -> int:
    """Give the thread back."""
    secede()
    time.sleep(seconds)
    return 1


def submit_more(count: int, *_: object) -> int:
    with worker_client() as client:
        return sum(client.gather(client.map(one, range(count), pure=False)))


def one(_: int) -> int:
    return 1


def graph(client: Client, chance: random.Random, name: str) -> list[Future]:
    """Three to six layers, each of which needs some of the layers before."""
    made: list[Future] = []
    for layer in range(chance.randint(3, 6)):
        for i in range(chance.randint(4, 30)):
            needs = chance.sample(made, min(len(made), chance.randint(0, 6)))
            function, arguments = _task(chance)
            options: dict[str, Any] = {"priority": chance.randint(0, 2), "retries": chance.randint(0, 1)}
            key = f"{function.__name__.replace('_', '')}-{name}-{layer}-{i}"
            made.append(client.submit(function, *arguments, *needs, key=key, **options))
    return made


def _task(chance: random.Random) -> tuple[Any, tuple[Any, ...]]:
    seconds = chance.choice((0.0, 0.0, 0.01, 0.05))
    nbytes = chance.choice((10, 10_000, 300_000))
    claims = chance.choice((nbytes, nbytes, 4_000_000))
    return chance.choices(
        (
            (make, (seconds, nbytes, claims)),
            (wait_a_moment, (seconds,)),
            (fail, ()),
            (leave, (seconds,)),
            (submit_more, (chance.randint(1, 5),)),
        ),
        weights=(80, 8, 2, 5, 5),
    )[0]
