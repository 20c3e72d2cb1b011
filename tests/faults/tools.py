"""Faults that act below Dask, each of which measures itself: slow values, a proxy between workers, blocked loops.

Moments are in ns since the epoch, as in spans; every fault notes the stretches in which it acted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from distributed.utils_test import gen_cluster

from otel_worker.trees import subtree, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_worker.traces import Span
    from tests.live import Live

MEGABYTE = 1_000_000
OFFLOAD = 150_000  # distributed.comm.offload in these tests: 10 MB take a while to copy on a machine that is busy
ABOVE_OFFLOAD = 2 * OFFLOAD
NOTES: dict[str, list[tuple[int, int]]] = defaultdict(list)
THREADS: dict[str, str] = {}  # in which thread a fault acted last
AFTER: list[Callable[[], object]] = []  # called at the end of each value's pickling and unpickling


# Dask's own test configuration ticks every 500 ms; this is its default.
TICKS = {"distributed.admin.tick.interval": "20 ms"}
# Spill by the target alone: what a value claims to weigh decides, not the memory of this process.
SPILLS = {
    "distributed.worker.memory.target": 0.5,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}


def cluster(workers: int = 2, config: dict[str, Any] | None = None, **options: Any) -> Any:
    return gen_cluster(
        client=True, nthreads=[("127.0.0.1", 1)] * workers, config={**TICKS, **(config or {})}, **options
    )


# --- measures ------------------------------------------------------------------------------------------------------


@contextmanager
def noting(name: str) -> Iterator[None]:
    begun = time.time_ns()
    try:
        yield
    finally:
        NOTES[name].append((begun, time.time_ns()))
        THREADS[name] = threading.current_thread().name


def notes(name: str) -> list[tuple[int, int]]:
    return NOTES[name]


def measured(name: str) -> float:
    """Seconds in all that this fault acted."""
    found = NOTES[name]
    assert found, f"the fault {name!r} never acted"
    return sum(end - begun for begun, end in found) / 1e9


def overlap(name: str, span: Span) -> float:
    """Seconds of the fault that lie inside the span."""
    return sum(max(0, min(end, span.end) - max(begun, span.start)) for begun, end in NOTES[name]) / 1e9


def near(seen: float, expected: float) -> bool:
    """Within max(10 %, 50 ms): real time is noisy."""
    return abs(seen - expected) <= max(0.1 * expected, 0.05)


def lasts(span: Span) -> float:
    return span.duration / 1e9


def assert_near(seen: float, expected: float, what: str = "") -> None:
    assert near(seen, expected), f"{what or 'seen'}: {seen:.3f} s, the fault measured {expected:.3f} s"


def sums(span: Span, prefix: str) -> dict[str, float]:
    """A breakdown read back from a span's attributes."""
    return {n.removeprefix(prefix): float(v) for n, v in span.attributes.items() if n.startswith(prefix)}


def every(live: Live, name: str, prefix: str = "", **attributes: object) -> list[Span]:
    """The spans of this name, of a task prefix, and with these attributes (dots written as double underscores), by start."""
    wanted = {f"dask.{n.replace('__', '.')}": value for n, value in attributes.items()}
    if prefix:
        wanted["dask.task.prefix"] = prefix
    found = [s for s in live.spans() if s.name == name and all(s.attributes.get(n) == v for n, v in wanted.items())]
    return sorted(found, key=lambda s: s.start)


def one(live: Live, name: str, prefix: str = "", **attributes: object) -> Span:
    found = every(live, name, prefix, **attributes)
    assert len(found) == 1, f"{len(found)} spans {name!r} {prefix} {attributes}: {[s.name for s in live.spans()]}"
    return found[0]


def below(live: Live, span: Span, name: str) -> Span:
    """The one span of this name in the tree below another."""
    found = [s for s in subtree(live.spans(), span) if s.name == name]
    assert len(found) == 1, f"{len(found)} spans {name!r} below {span.name}"
    return found[0]


def shape(live: Live, span: Span) -> list[str]:
    """The tree below a span."""
    lines = tree(subtree(live.spans(), span))
    return [lines[0].partition(" (")[0], *lines[1:]]


# --- values --------------------------------------------------------------------------------------------------------


class Slow:
    """A value that takes `pickling` and `unpickling` seconds, noted as `<name>.pickling` and `<name>.unpickling`."""

    def __init__(
        self, name: str, *, pickling: float = 0.0, unpickling: float = 0.0, nbytes: int = 1000, claims: int = 0
    ) -> None:
        self.name = name
        self.pickling = pickling
        self.unpickling = unpickling
        self.payload = bytes(nbytes)
        self.claims = claims

    def __sizeof__(self) -> int:
        return self.claims or len(self.payload)

    def __reduce__(self) -> Any:
        with noting(f"{self.name}.pickling"):
            time.sleep(self.pickling)
        return _restored, (self.name, self.pickling, self.unpickling, self.payload, self.claims)


def _restored(name: str, pickling: float, unpickling: float, payload: bytes, claims: int) -> Slow:
    with noting(f"{name}.unpickling"):
        time.sleep(unpickling)
    for call in AFTER:
        call()
    value = Slow(name, pickling=pickling, unpickling=unpickling, nbytes=0, claims=claims)
    value.payload = payload
    return value


class Broken:
    """A value that can't be unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("this value can't be unpickled")


def slow(*_: object, **options: Any) -> Slow:
    """A task that makes a slow value, whatever it depends on."""
    return Slow(**options)


def plain(nbytes: int) -> bytes:
    return bytes(nbytes)


def use(*_: object) -> int:
    """A task that needs its arguments and does nothing with them."""
    return 1


def hold(*_: object, name: str, seconds: float) -> int:
    """A task that takes a while."""
    with noting(name):
        time.sleep(seconds)
    return 1


def broken() -> Broken:
    return Broken()


_LOCALS: dict[int, Callable[..., Any]] = {}


class local:  # noqa: N801 - used as a decorator
    """A function that is found again in this process when it was pickled: tests write closures."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__tornado_coroutine__ = iscoroutinefunction(function)  # so Dask awaits it
        _LOCALS[id(self)] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _local, (id(self),)


def _local(name: int) -> Any:
    return _LOCALS[name]


# --- event loops -----------------------------------------------------------------------------------------------------


async def calm() -> None:
    """Until the event loop has come round in time for a while: a cluster that starts keeps it busy."""
    in_time = 0
    while in_time < 4:
        begun = time.perf_counter()
        await asyncio.sleep(0.02)
        in_time = in_time + 1 if time.perf_counter() - begun < 0.03 else 0


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what it waits for is the state of Dask's own objects
        await asyncio.sleep(0.01)


def stop(seconds: float, name: str = "block") -> None:
    with noting(name):
        time.sleep(seconds)


async def block(seconds: float, name: str = "block") -> list[tuple[int, int]]:
    """Block the event loop that runs this; `Client.run` takes it."""
    stop(seconds, name)
    return NOTES[name]


def recall(name: str) -> list[tuple[int, int]]:
    """What a fault noted in another process; `Client.run` takes it."""
    return NOTES[name]


# --- dials -------------------------------------------------------------------------------------------------------------


class Dials(logging.Handler):
    """Reads from Dask's own log that a dial failed, and calls `after` after the `n`-th."""

    def __init__(self, n: int, after: Any) -> None:
        super().__init__(logging.DEBUG)
        self.left = n
        self.after = after
        self.failed: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Could not connect to"):
            self.failed.append(time.time_ns())
            self.left -= 1
            if self.left == 0:
                self.after()


@contextmanager
def dials_that_fail(n: int, after: Any) -> Iterator[Dials]:
    logger = logging.getLogger("distributed.comm.core")
    handler, level = Dials(n, after), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
