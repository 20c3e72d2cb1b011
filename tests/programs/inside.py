"""What acts inside a worker's process for tests/faults/test_table.py: run there through `Client.run`, or as a task."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from distributed import Worker

from tests.faults.tools import NOTES, Dials, noting, until


class Narrow(Worker):  # type: ignore[misc]
    """A worker, the pool of which allows one connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, connection_limit=1, **options)


def forget_notes() -> None:
    NOTES.clear()


def disconnect(address: str, dask_worker: Worker) -> None:
    """The next request to that peer needs a new connection."""
    dask_worker.rpc.remove(address)


def knows(key: str, dask_worker: Worker) -> bool:
    return key in dask_worker.state.tasks


def spilled(key: str, dask_worker: Worker) -> bool:
    return key in dask_worker.data.slow


def tell_failed_dials(count: int, failed: str, answer: str) -> None:
    """After so many failed dials make the file `failed`, and wait for `answer` before there is another dial."""

    def tell() -> None:
        Path(failed).touch()
        while not Path(answer).exists():
            time.sleep(0.001)
        logger.removeHandler(handler)
        logger.setLevel(level)

    logger = logging.getLogger("distributed.comm.core")
    handler, level = Dials(count, tell), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)


class Pauses(logging.Handler):
    """Reads from Dask's own log when the memory monitor paused the worker and when it let it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = self.resumed = 0

    def emit(self, record: logging.LogRecord) -> None:
        if "Pausing worker" in record.getMessage():
            self.paused = time.time_ns()
        elif "Resuming worker" in record.getMessage():
            self.resumed = time.time_ns()


async def fill_memory(fraction: float, seconds: float, dask_worker: Worker) -> None:
    """So much of its limit that the memory monitor pauses the worker; how long it was paused is noted."""
    pauses, logger = Pauses(), logging.getLogger("distributed.worker.memory")
    logger.addHandler(pauses)
    wanted = fraction * dask_worker.memory_manager.memory_limit - dask_worker.monitor.get_process_memory()
    held = b"x" * int(wanted)
    await until(lambda: bool(pauses.paused))
    await asyncio.sleep(seconds)
    del held
    await until(lambda: bool(pauses.resumed))
    logger.removeHandler(pauses)
    NOTES["paused"].append((pauses.paused, pauses.resumed))


async def block_the_loop(seconds: float) -> None:
    with noting("block"):
        time.sleep(seconds)  # noqa: ASYNC251 - the fault
