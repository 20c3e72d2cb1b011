"""Policies that start from the most urgent key of all, not from a worker: a heap over every key in state `fetch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed.collections import HeapSet
from distributed.comm.addressing import get_address_host
from distributed.worker_state_machine import (
    GatherDep,
    GatherDepDoneEvent,
    RemoveWorkerEvent,
    RetryBusyWorkerEvent,
    WorkerState,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from distributed.worker_state_machine import (
        Instruction,
        Instructions,
        Recs,
        RecsInstrs,
        StateMachineEvent,
        TaskState,
    )


def by_priority(ts: TaskState) -> tuple[Any, ...]:
    """Equal priorities: the key that came first goes first, as in Dask's heaps today."""
    return ts.priority or ()


def by_priority_and_name(ts: TaskState) -> tuple[Any, ...]:
    """Equal priorities: by the key's text, as in Dask's heaps until 2022."""
    return ts.priority or (), str(ts.key)


class KeyQueue(WorkerState):  # type: ignore[misc]
    """Keeps `queue`, a heap of every key in `fetch`, beside Dask's own heaps by worker (which `validate_state` wants)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue = HeapSet(key=by_priority)

    def _transition(self, ts: TaskState, finish: Any, *args: Any, stimulus_id: str) -> RecsInstrs:
        start = ts.state
        result = super()._transition(ts, finish, *args, stimulus_id=stimulus_id)
        if ts.state == "fetch" and start != "fetch":
            self.queue.add(ts)
        elif start == "fetch" and ts.state != "fetch":
            self.queue.discard(ts)
        return result

    def _offered_by(self, ts: TaskState) -> list[str]:
        """The holders in whose heap the key still is: none, once it was asked for in this very decision."""
        holders = ts.who_has if len(ts.who_has) < 2 else sorted(ts.who_has)
        return [worker for worker in holders if ts in self.data_needed.get(worker, ())]

    def _charge(self, operations: int) -> None:
        """Heap operations that the original would have made and a shortcut spared; `measure.py` counts them."""


class EagerTransitions(WorkerState):  # type: ignore[misc]
    """Decides at each transition to `fetch`, as Dask did when `_ensure_communicating` was part of that transition."""

    def _transition(self, ts: TaskState, finish: Any, *args: Any, stimulus_id: str) -> RecsInstrs:
        start = ts.state
        recommendations, instructions = super()._transition(ts, finish, *args, stimulus_id=stimulus_id)
        if ts.state != "fetch" or start == "fetch":
            return recommendations, instructions
        more_recommendations, more_instructions = self._ensure_communicating(stimulus_id=stimulus_id)
        return {**recommendations, **more_recommendations}, [*instructions, *more_instructions]


class LegacyDeferred(KeyQueue):
    """Until 2022, decided late: the most urgent key picks its worker, whose other keys join; once, after all transitions.

    Keys whose holders are all in flight or busy are skipped and put back at the end of each decision. Dask's own
    `_ensure_communicating` does the rest, so today's limits hold.
    """

    #: above this many keys, a walk through a queue that nobody can be asked for is charged, not done: all the walks
    #: together are quadratic
    WALK = 1_000

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue = HeapSet(key=by_priority_and_name)
        self.data_needed.default_factory = lambda: HeapSet(key=by_priority_and_name)

    def _select_workers_for_gather(self) -> Iterator[tuple[str, HeapSet[TaskState]]]:
        if len(self.queue) > self.WALK and not any(
            tasks and worker not in self.in_flight_workers and worker not in self.busy_workers
            for worker, tasks in self.data_needed.items()
        ):
            self._charge(2 * len(self.queue))
            return
        skipped: list[TaskState] = []
        try:
            while self.queue:
                ts = self.queue.pop()
                holders = self._offered_by(ts)
                if not holders:
                    continue
                skipped.append(ts)
                worker = self._pick(holders)
                if worker is not None:
                    yield worker, self.data_needed[worker]
                    if not self.data_needed[worker]:
                        del self.data_needed[worker]
        finally:  # also when Dask's loop stops early, because a limit was reached
            for ts in skipped:
                if self._offered_by(ts):
                    self.queue.add(ts)

    def _pick(self, holders: list[str]) -> str | None:
        free = [
            worker for worker in holders if worker not in self.in_flight_workers and worker not in self.busy_workers
        ]
        host = get_address_host(self.address)
        local = [worker for worker in free if get_address_host(worker) == host]
        return self.rng.choice(local or free) if free else None


class LegacyEager(EagerTransitions, LegacyDeferred):
    """Until 2022: as legacy-deferred, but at each transition to `fetch`: the first key of a worker goes alone."""


class GlobalPriority(KeyQueue):
    """1B: the most urgent key of all first, joined to the request of its worker that this decision has opened.

    Stops when no key is left, at the byte limit of all requests (the key that reaches it is still asked for), or when as
    many requests as the count limit allows can take no more: they reached the limit per message, or were sent before.
    A key that can't be asked for is set aside, and put back when a holder leaves flight or busy, when a new holder
    appears, or, if only a free slot was missing, when any request ends.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.open: dict[str, GatherDep] = {}
        self.saturated = 0
        self.aside: dict[str, list[TaskState]] = {}
        self.no_slot: list[TaskState] = []

    def _ensure_communicating(self, *, stimulus_id: str) -> RecsInstrs:
        recommendations: Recs = {}
        instructions: list[Instruction] = []
        if not self.running:
            return recommendations, instructions
        self._begin()
        while self.queue and not self._enough():
            ts = self.queue.pop()
            worker = self._pick(ts)
            if worker is not None:
                self._join(ts, worker, instructions, stimulus_id)
                recommendations[ts] = ("flight", worker)
        return recommendations, instructions

    def _begin(self) -> None:
        """Requests of earlier decisions are with the worker by now: nothing can join them."""
        self.open.clear()
        self.saturated = 0

    def _enough(self) -> bool:
        if self.transfer_incoming_bytes >= self.transfer_incoming_bytes_limit:
            return True
        closed = len(self.in_flight_workers) - len(self.open) + self.saturated
        threshold = self.transfer_incoming_bytes_throttle_threshold
        return bool(closed >= self.transfer_incoming_count_limit and self.transfer_incoming_bytes >= threshold)

    def _pick(self, ts: TaskState) -> str | None:
        """The holder to ask: on this host before others, with an open request before others; None: the key is set aside."""
        holders = self._offered_by(ts)
        host = get_address_host(self.address)
        candidates = [
            (get_address_host(worker) != host, worker not in self.open, worker)
            for worker in holders
            if worker not in self.busy_workers and self._takes_more(worker)
        ]
        no_slot = self._should_throttle_incoming_transfers()
        allowed = [candidate for candidate in candidates if not (candidate[1] and no_slot)]
        if allowed:
            return min(allowed)[2]
        if candidates:
            self.no_slot.append(ts)
        for worker in holders:
            self.aside.setdefault(worker, []).append(ts)
        return None

    def _takes_more(self, worker: str) -> bool:
        request = self.open.get(worker)
        if request is None:
            return worker not in self.in_flight_workers
        return bool(request.total_nbytes < self.transfer_message_bytes_limit)

    def _join(self, ts: TaskState, worker: str, instructions: list[Instruction], stimulus_id: str) -> None:
        if worker not in self.open:
            self.open[worker] = GatherDep(worker=worker, to_gather=set(), total_nbytes=0, stimulus_id=stimulus_id)
            instructions.append(self.open[worker])
            self.in_flight_workers[worker] = self.open[worker].to_gather
            self.transfer_incoming_count_total += 1
        request = self.open[worker]
        request.to_gather.add(ts.key)
        request.total_nbytes += ts.get_nbytes()
        self.transfer_incoming_bytes += ts.get_nbytes()
        self.saturated += request.total_nbytes >= self.transfer_message_bytes_limit
        for holder in self._offered_by(ts):
            self.data_needed[holder].remove(ts)
            if not self.data_needed[holder]:
                del self.data_needed[holder]

    # --- keys that were set aside come back --------------------------------------------------------------------------

    def _handle_event(self, ev: StateMachineEvent) -> RecsInstrs:
        if isinstance(ev, (GatherDepDoneEvent, RetryBusyWorkerEvent, RemoveWorkerEvent)):
            self._put_back(self.aside.pop(ev.worker, ()))
        if isinstance(ev, GatherDepDoneEvent):
            self._put_back(self.no_slot)
            self.no_slot = []
        return super()._handle_event(ev)

    def _update_who_has(self, who_has: Mapping[Any, Collection[str]]) -> None:
        super()._update_who_has(who_has)
        self._put_back(self.tasks[key] for key in who_has if key in self.tasks)

    def _put_back(self, tasks: Iterable[TaskState]) -> None:
        for ts in tasks:
            if ts.state == "fetch":
                self.queue.add(ts)


class GlobalPriorityByConnections(GlobalPriority):
    """1B as first proposed: stops at the limit on connections, whether or not the requests can take more keys."""

    def _enough(self) -> bool:
        return bool(self._should_throttle_incoming_transfers())


class Merged(EagerTransitions, GlobalPriority):
    """3D: an instruction a key, given at its transition to `fetch`; those for one worker are merged before they are handled."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decisions = 0  # instructions before they were merged

    def handle_stimulus(self, *stims: StateMachineEvent) -> Instructions:
        super()._begin()
        return merge_requests(super().handle_stimulus(*stims))

    def _begin(self) -> None:
        """A request stays open until the stimulus has been handled."""

    def _join(self, ts: TaskState, worker: str, instructions: list[Instruction], stimulus_id: str) -> None:
        super()._join(ts, worker, [], stimulus_id)
        self.decisions += 1
        instructions.append(
            GatherDep(worker=worker, to_gather={ts.key}, total_nbytes=ts.get_nbytes(), stimulus_id=stimulus_id)
        )


def merge_requests(instructions: Iterable[Instruction]) -> list[Instruction]:
    """One GatherDep a worker, in the place of its first; nothing else changes."""
    first: dict[str, GatherDep] = {}
    merged: list[Instruction] = []
    for instruction in instructions:
        if not isinstance(instruction, GatherDep) or instruction.worker not in first:
            merged.append(instruction)
            if isinstance(instruction, GatherDep):
                first[instruction.worker] = instruction
        else:
            first[instruction.worker].to_gather.update(instruction.to_gather)
            first[instruction.worker].total_nbytes += instruction.total_nbytes
    return merged
