"""The policies by name, and what each one overrides of Dask's WorkerState.

Every policy *is* Dask's WorkerState: transitions, validation, events and limits are Dask's own code. The simplest
policies stand here; those that keep a heap over all workers in `task_first.py`, those that choose keys late in `late.py`.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from distributed.comm.addressing import get_address_host
from distributed.worker_state_machine import GatherDep, GatherDepBusyEvent, GatherDepSuccessEvent, WorkerState

from otel_worker.lab.late import LateBinding, Mutating
from otel_worker.lab.task_first import (
    GlobalPriority,
    GlobalPriorityByConnections,
    LegacyDeferred,
    LegacyEager,
    Merged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed.collections import HeapSet
    from distributed.worker_state_machine import Instructions, Recs, RecsInstrs, StateMachineEvent, TaskState


class Current(WorkerState):  # type: ignore[misc]
    """Dask as it is (1A + 3B): a heap a worker; decides once, after all transitions of a stimulus. Overrides nothing."""


class FirstInFirstOut(OrderedDict):  # type: ignore[type-arg]
    """Recommendations that are taken in the order in which they came; Dask takes the last one first."""

    def popitem(self, last: bool = False) -> tuple[Any, Any]:
        return super().popitem(last=last)


class BreadthFirst(WorkerState):  # type: ignore[misc]
    """3C: all transitions of one generation before those that they recommend. The decision comes after them all anyway."""

    def _transitions(self, recommendations: Recs, *, stimulus_id: str) -> Instructions:
        return super()._transitions(FirstInFirstOut(recommendations), stimulus_id=stimulus_id)

    def _ensure_communicating(self, *, stimulus_id: str) -> RecsInstrs:
        recommendations, instructions = super()._ensure_communicating(stimulus_id=stimulus_id)
        return FirstInFirstOut(recommendations), instructions


class LoadAware(WorkerState):  # type: ignore[misc]
    """As today, but among workers with an equally urgent key the one that has served us best comes first.

    It knows only what a worker can see by itself: busy replies, and the seconds that earlier replies took. A peer's pace
    counts in powers of two, so that noise does not outweigh the number of keys that a request can bundle.
    """

    #: weight of the newest reply
    WEIGHT = 0.3
    #: bytes added to each reply's size, so that the pace of small ones is not all latency
    SMALL = 1_000_000

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clock = clock
        self.busyness: dict[str, float] = {}
        self.pace: dict[str, float] = {}
        self.asked_at: dict[str, float] = {}

    def _ensure_communicating(self, *, stimulus_id: str) -> RecsInstrs:
        recommendations, instructions = super()._ensure_communicating(stimulus_id=stimulus_id)
        for instruction in instructions:
            if isinstance(instruction, GatherDep):
                self.asked_at[instruction.worker] = self.clock()
        return recommendations, instructions

    def _handle_event(self, ev: StateMachineEvent) -> RecsInstrs:
        if isinstance(ev, GatherDepBusyEvent):
            self._learn(self.busyness, ev.worker, 1.0)
        elif isinstance(ev, GatherDepSuccessEvent):
            self._learn(self.busyness, ev.worker, 0.0)
            seconds = self.clock() - self.asked_at.get(ev.worker, self.clock())
            self._learn(self.pace, ev.worker, seconds / (ev.total_nbytes + self.SMALL))
        return super()._handle_event(ev)

    def _learn(self, memory: dict[str, float], worker: str, seen: float) -> None:
        memory[worker] = memory.get(worker, seen) * (1 - self.WEIGHT) + seen * self.WEIGHT

    def _rank(self, worker: str, tasks: HeapSet[TaskState]) -> tuple[Any, ...]:
        pace = self.pace.get(worker, 0.0)
        return (
            tasks.peek().priority,
            get_address_host(worker) != get_address_host(self.address),
            round(self.busyness.get(worker, 0.0), 1),
            round(math.log2(pace)) if pace > 0 else -math.inf,  # whoever was never asked is worth a try
            -len(tasks),
        )

    def _select_workers_for_gather(self) -> Iterator[tuple[str, HeapSet[TaskState]]]:
        for worker in [worker for worker, tasks in self.data_needed.items() if not tasks]:
            del self.data_needed[worker]
        heap = [
            (self._rank(worker, tasks), self.rng.random(), worker)
            for worker, tasks in self.data_needed.items()
            if worker not in self.in_flight_workers and worker not in self.busy_workers
        ]
        heapq.heapify(heap)
        while heap:
            rank, chance, worker = heapq.heappop(heap)
            tasks = self.data_needed[worker]
            if tasks and self._rank(worker, tasks) != rank:  # its best key went to another holder
                heapq.heappush(heap, (self._rank(worker, tasks), chance, worker))
            elif tasks:
                yield worker, tasks
            if not tasks:
                del self.data_needed[worker]


class EagerBreadthFirst(BreadthFirst, LegacyEager):
    """3C where it was hoped to help: eager, breadth first. The first key still goes alone."""


#: those named in the discussion
POLICIES: dict[str, type[WorkerState]] = {
    "current": Current,
    "legacy-eager": LegacyEager,
    "legacy-deferred": LegacyDeferred,
    "global-priority": GlobalPriority,
    "late-binding": LateBinding,
    "merged": Merged,
    "mutating": Mutating,
    "breadth-first": BreadthFirst,
    "load-aware": LoadAware,
}
#: variations that settle one question each
VARIANTS: dict[str, type[WorkerState]] = {
    "global-priority-connections": GlobalPriorityByConnections,
    "legacy-eager-breadth-first": EagerBreadthFirst,
}
ALL_POLICIES = {**POLICIES, **VARIANTS}


def overrides(policy: type[WorkerState]) -> list[str]:
    """The methods of Dask's WorkerState that a policy replaces, in alphabetical order."""
    ours = [cls for cls in policy.__mro__ if cls.__module__.startswith("otel_worker.")]
    names = {name for cls in ours for name in vars(cls)}
    return sorted(name for name in names if name != "__doc__" and callable(getattr(WorkerState, name, None)))


def summary(policy: type[WorkerState]) -> str:
    """The first line of a policy's docstring."""
    return (policy.__doc__ or "").strip().splitlines()[0]
