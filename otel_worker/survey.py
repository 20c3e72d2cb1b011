"""Ask all workers of a cluster what is open, or for their sums, through their scheduler; none that hangs holds up the others.

A worker that has not answered is not asked again before it does: nothing piles up in front of a process that is stopped.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_worker import names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    Broadcast = Callable[..., Awaitable[Mapping[str, Any]]]  # as `Scheduler.broadcast`

AT_ONCE = 64  # requests to the scheduler; of a larger cluster several workers are asked with one


@dataclass
class Round:
    """Who said what: workers by address."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)  # they do not have us, or we are switched off there
    silent: list[str] = field(default_factory=list)  # no answer in time
    failed: dict[str, str] = field(default_factory=dict)  # what happened instead of an answer


class Survey:
    """Asks again and again; `timeout` in seconds is how long one round waits, at most twice that in a large cluster."""

    def __init__(self, broadcast: Broadcast, timeout: float) -> None:
        self._broadcast = broadcast
        self._timeout = timeout
        self._pending: dict[str, asyncio.Task[Any]] = {}

    async def round(self, workers: Mapping[str, Mapping[str, Any]], **question: Any) -> Round:
        """Ask `workers`, which are addresses and the metrics of their last heartbeat."""
        found = Round()
        found.without = [address for address, metrics in workers.items() if names.OPERATION not in (metrics or {})]
        asked = [address for address in workers if address not in set(found.without)]
        self._pending = {address: task for address, task in self._pending.items() if not task.done()}
        found.silent = [address for address in asked if address in self._pending]
        free = [address for address in asked if address not in self._pending]
        size = max(1, -(-len(free) // AT_ONCE))
        await self._ask([free[i : i + size] for i in range(0, len(free), size)], question, found)
        return found

    async def _ask(self, groups: Sequence[Sequence[str]], question: Mapping[str, Any], found: Round) -> None:
        tasks = {asyncio.ensure_future(self._send(group, question)): group for group in groups}
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=self._timeout)
        for task in done:
            self._sort(task, tasks[task], found)
        alone = []
        for task in late:
            if len(tasks[task]) > 1:  # which of them does not answer?
                task.cancel()
                alone += [[address] for address in tasks[task]]
            else:
                (address,) = tasks[task]
                self._pending[address] = task
                found.silent.append(address)
        await self._ask(alone, question, found)

    async def _send(self, workers: Sequence[str], question: Mapping[str, Any]) -> Mapping[str, Any]:
        message = {"op": names.OPERATION, **question}
        return await self._broadcast(msg=message, workers=list(workers), on_error="return_pickle")

    @staticmethod
    def _sort(task: asyncio.Task[Any], workers: Sequence[str], found: Round) -> None:
        if (error := task.exception()) is not None:
            found.failed.update(dict.fromkeys(workers, str(error) or type(error).__name__))
            return
        for address in workers:
            answer = task.result().get(address)
            if not isinstance(answer, dict):  # a pickled exception, which nobody needs to load
                found.failed[address] = "it could not be asked"
            elif not answer.get("on"):
                found.without.append(address)
            else:
                found.answers[address] = answer

    def close(self) -> None:
        """Who has not answered is not waited for."""
        for task in self._pending.values():
            task.cancel()
        self._pending = {}
