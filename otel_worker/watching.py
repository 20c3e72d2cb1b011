"""Beside a program that runs: which clusters it uses, which of their workers can be seen, and what is open there now."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from otel_worker.scheduler import Scheduler, SchedulerError, connected

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVERY = 0.5  # seconds between two looks
PATIENCE = 3.0  # seconds to wait for answers


@dataclass
class Cluster:
    """One scheduler that the program connected to, and the last that was heard of its workers."""

    scheduler: str
    workers: dict[str, str] = field(default_factory=dict)  # address -> answered | without | silent | failed
    recorded: dict[str, int] = field(default_factory=dict)  # spans that a worker recorded, by address
    slowest: dict[str, Any] | None = None  # the task that is open for longest


@final
class Watcher:
    """Looks in a thread of its own while the `with` block runs. What can't be asked is left out."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._stop = threading.Event()
        self._cancel: Callable[[], object] | None = None  # ends what is asked just now
        self._thread = threading.Thread(target=self._run, name="otel-worker-watch", daemon=True)
        self.clusters: dict[str, Cluster] = {}

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._cancel is not None:
            self._cancel()
        self._thread.join(PATIENCE)

    @property
    def slowest(self) -> dict[str, Any] | None:
        """The task that is open for longest on any of them."""
        found = [cluster.slowest for cluster in list(self.clusters.values()) if cluster.slowest is not None]
        return max(found, key=lambda opening: float(opening["seconds"]), default=None)

    def _run(self) -> None:
        while not self._stop.wait(EVERY / 2):
            if self._addresses():  # before that, nobody needs Dask
                with suppress(asyncio.CancelledError):
                    asyncio.run(self._watch())

    def _addresses(self) -> list[str]:
        """The schedulers that clients noted; inproc:// is the program's own process, which can't be asked."""
        try:
            lines = self._notes.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                found.append(str(json.loads(line)["scheduler"]))
        return [address for address in dict.fromkeys(found) if not address.startswith("inproc")]

    async def _watch(self) -> None:
        schedulers: dict[str, Scheduler] = {}
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.is_closed() or loop.call_soon_threadsafe(task.cancel)
        async with AsyncExitStack() as stack:
            while not self._stop.is_set():
                for address in self._addresses():
                    if address not in schedulers:
                        with suppress(SchedulerError):
                            self.clusters.setdefault(address, Cluster(address))
                            schedulers[address] = await stack.enter_async_context(connected(address, PATIENCE))
                await asyncio.gather(*(self._look(address, held) for address, held in schedulers.items()))
                await asyncio.sleep(EVERY)

    async def _look(self, address: str, held: Scheduler) -> None:
        cluster = self.clusters[address]
        cluster.slowest = None
        try:
            workers = await held.workers()
        except SchedulerError:
            return  # it has ended, or is busy
        asked = await held.survey.round({a: w.get("metrics") or {} for a, w in workers.items()}, most=50)
        for state, addresses in (
            ("without", asked.without),
            ("silent", asked.silent),
            ("failed", asked.failed),
            ("answered", asked.answers),
        ):
            cluster.workers.update(dict.fromkeys(addresses, state))
        tasks = []
        for worker, answer in asked.answers.items():
            cluster.recorded[worker] = int(answer.get("spans", {}).get("recorded", 0))
            named = str(workers[worker].get("name"))
            tasks += [{**o, "name": named} for o in answer["open"] if o["kind"] == "task"]
        cluster.slowest = max(tasks, key=lambda opening: float(opening["seconds"]), default=None)
