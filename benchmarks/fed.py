"""A real worker in this process that is fed tasks directly: no scheduler, no client, no network, so little noise.

What is measured is one task's life on a worker: the state machine, the asyncio tasks, the executor's thread, the hooks.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from distributed.worker import Worker
from distributed.worker_state_machine import ComputeTaskEvent, FreeKeysEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

NOWHERE = "tcp://127.0.0.1:9"  # a scheduler that is never asked: what the worker would tell it is dropped


class Fed:
    """Use `await Fed.start()` on a running event loop, and `close` at the end."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._number = 0

    @classmethod
    async def start(cls) -> Fed:
        worker = Worker(NOWHERE, nthreads=1, dashboard=False, memory_limit=0, validate=False)
        await worker.listen("tcp://127.0.0.1:0")
        worker.status = Status.running
        worker.periodic_callbacks["tick"].start()
        return cls(worker)

    async def run(self, tasks: int, annotations: Mapping[str, Any] | None = None) -> None:
        """Let the worker compute `tasks` no-op tasks, and forget them."""
        self._number += 1
        keys = [f"noop-{self._number:08}-{i}" for i in range(tasks)]
        stimulus = f"fed-{self._number}"
        dummy, about = ComputeTaskEvent.dummy, dict(annotations or {})
        events = [dummy(key, priority=(0, 1, i), annotations=about, stimulus_id=stimulus) for i, key in enumerate(keys)]
        for at in range(0, tasks, BATCH):
            self.worker.handle_stimulus(*events[at : at + BATCH])
        data = self.worker.data
        while len(data) < tasks:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.002)
        self.worker.handle_stimulus(FreeKeysEvent(keys=keys, stimulus_id=stimulus))
        await asyncio.sleep(0)

    async def cpu(self, tasks: int, annotations: Mapping[str, Any] | None = None) -> float:
        """CPU of the whole process while it computes, in µs a task."""
        begun = time.process_time_ns()
        await self.run(tasks, annotations)
        return (time.process_time_ns() - begun) / tasks / 1000

    def close(self) -> None:
        """Threads end; nobody has to be told."""
        for pool in self.worker.executors.values():
            pool.shutdown(wait=False)
        for callback in self.worker.periodic_callbacks.values():
            callback.stop()


BATCH = 50  # tasks that come in one batch of messages
