"""Layers that the lab puts before a policy's class: a fixed order, a CPU clock, a count of heap operations."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from distributed.collections import HeapSet
from distributed.worker_state_machine import GatherDepDoneEvent, RemoveWorkerEvent, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from distributed.worker_state_machine import Instructions, Recs, RecsInstrs, StateMachineEvent, TaskState


class Ordered(WorkerState):  # type: ignore[misc]
    """Where Dask leaves an order to the hash of strings or the address of objects, it is that of the keys' text here.

    So the same seed gives the same run in any process. What Dask decides by itself is left alone.
    """

    def _transition(self, ts: TaskState, finish: Any, *args: Any, stimulus_id: str) -> RecsInstrs:
        if finish == "fetch" and len(ts.who_has) > 1:
            for worker in sorted(ts.who_has):
                self.data_needed[worker]  # creates its heap: ties between workers follow the order of creation
        recommendations, instructions = super()._transition(ts, finish, *args, stimulus_id=stimulus_id)
        return in_order(recommendations), instructions

    def _handle_event(self, ev: StateMachineEvent) -> RecsInstrs:
        recommendations, instructions = super()._handle_event(ev)
        if isinstance(ev, (GatherDepDoneEvent, RemoveWorkerEvent)):
            recommendations = in_order(recommendations)
        return recommendations, instructions

    def _update_who_has(self, who_has: Mapping[Any, Collection[str]]) -> None:
        for key, workers in who_has.items():
            ts = self.tasks.get(key)
            if ts is not None and ts.state == "fetch":
                for worker in sorted(set(workers) - ts.who_has - {self.address}):
                    self.data_needed[worker]
        super()._update_who_has(who_has)


def in_order(recommendations: Recs) -> Recs:
    """Dask takes the last recommendation first: descending, so that keys are taken in ascending order."""
    if len(recommendations) < 2:
        return recommendations
    return dict(sorted(recommendations.items(), key=lambda item: str(item[0].key), reverse=True))


class Timed(WorkerState):  # type: ignore[misc]
    """CPU seconds of this thread in stimuli, and in their decisions about what to ask."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stimulus_seconds = 0.0
        self.decision_seconds = 0.0

    def handle_stimulus(self, *stims: StateMachineEvent) -> Instructions:
        start = time.thread_time()
        instructions = super().handle_stimulus(*stims)
        self.stimulus_seconds += time.thread_time() - start
        return instructions

    def _ensure_communicating(self, *, stimulus_id: str) -> RecsInstrs:
        start = time.thread_time()
        result = super()._ensure_communicating(stimulus_id=stimulus_id)
        self.decision_seconds += time.thread_time() - start
        return result


class CountedHeap(HeapSet):  # type: ignore[misc]
    """A HeapSet that counts what is done to it."""

    __slots__ = ("count",)

    def __init__(self, *, key: Callable[[Any], Any], count: Callable[[int], None]) -> None:
        super().__init__(key=key)
        self.count = count

    def add(self, value: Any) -> None:
        self.count(1)
        super().add(value)

    def discard(self, value: Any) -> None:
        self.count(1)
        super().discard(value)

    def peek(self) -> Any:
        self.count(1)
        return super().peek()

    def pop(self) -> Any:
        self.count(1)
        return super().pop()


class Counted(WorkerState):  # type: ignore[misc]
    """Counts operations on the heaps of keys (add, remove, peek, pop), and the workers looked at to choose one."""

    data_needed: Any
    queue: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heap_operations = 0
        key = self.data_needed.default_factory().key
        self.data_needed = defaultdict(lambda: CountedHeap(key=key, count=self._charge))
        queue: HeapSet[TaskState] | None = getattr(self, "queue", None)
        if queue is not None:
            self.queue = CountedHeap(key=queue.key, count=self._charge)

    def _charge(self, operations: int) -> None:
        self.heap_operations += operations

    def _select_workers_for_gather(self) -> Iterator[tuple[str, HeapSet[TaskState]]]:
        self._charge(len(self.data_needed))
        selected: Iterator[tuple[str, HeapSet[TaskState]]] = super()._select_workers_for_gather()
        return selected


def instrumented(policy: type[WorkerState], *, cpu: bool = True, operations: bool = True) -> type[WorkerState]:
    """The policy with the lab's layers before it."""
    layers = [layer for layer, wanted in ((Timed, cpu), (Counted, operations), (Ordered, True)) if wanted]
    return type(policy.__name__, (*layers, policy), {})


def seeded(state: WorkerState, seed: int) -> WorkerState:
    """Dask seeds every worker's choices among equals with 0; another seed tries other choices."""
    state.rng = random.Random(seed)  # noqa: S311
    return state
