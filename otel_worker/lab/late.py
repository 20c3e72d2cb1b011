"""Policies that choose or change the keys of a request after it was decided on, until it is acted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed.worker_state_machine import GatherDep, GatherDepDoneEvent, StateMachineEvent, WorkerState

if TYPE_CHECKING:
    from distributed.worker_state_machine import Instruction, Recs, RecsInstrs


@dataclass
class StartGatherEvent(StateMachineEvent):  # type: ignore[misc]
    """The worker is about to send a request: choose its keys now."""

    __slots__ = ("worker",)
    worker: str


class LateBinding(WorkerState):  # type: ignore[misc]
    """GatherDep names only the worker; its keys are chosen when it is acted on, by one more event, StartGatherEvent.

    In between the worker counts as in flight and the keys stay in `fetch`. If nothing fits or is left by then, the
    request is dropped; whatever blocked it lets the next decision try again.
    """

    def _ensure_communicating(self, *, stimulus_id: str) -> RecsInstrs:
        instructions: list[Instruction] = []
        if not self.running or self._should_throttle_incoming_transfers():
            return {}, instructions
        for worker, tasks in self._select_workers_for_gather():
            if self._task_exceeds_transfer_limits(tasks.peek(), 0):
                break  # as Dask today: what comes next does not fit, nobody else is asked either
            self.in_flight_workers[worker] = set()
            instructions.append(GatherDep(worker=worker, to_gather=set(), total_nbytes=0, stimulus_id=stimulus_id))
            if self._should_throttle_incoming_transfers():
                break
        return {}, instructions

    def _handle_event(self, ev: StateMachineEvent) -> RecsInstrs:
        if isinstance(ev, StartGatherEvent):
            return self._start_gather(ev)
        return super()._handle_event(ev)

    def _start_gather(self, ev: StartGatherEvent) -> RecsInstrs:
        available = self.data_needed.get(ev.worker)
        if not self.running or not available or self._started_enough():
            del self.in_flight_workers[ev.worker]
            return {}, []
        tasks, nbytes = self._select_keys_for_gather(available)
        if not tasks:
            del self.in_flight_workers[ev.worker]
            return {}, []
        keys = {ts.key for ts in tasks}
        self.in_flight_workers[ev.worker] = keys
        self.transfer_incoming_count_total += 1
        self.transfer_incoming_bytes += nbytes
        request = GatherDep(worker=ev.worker, to_gather=keys, total_nbytes=nbytes, stimulus_id=ev.stimulus_id)
        return dict.fromkeys(tasks, ("flight", ev.worker)), [request]

    def _started_enough(self) -> bool:
        """Dask's throttle, where only requests that have their keys count as connections."""
        started = sum(1 for keys in self.in_flight_workers.values() if keys)
        threshold = self.transfer_incoming_bytes_throttle_threshold
        enough = started >= self.transfer_incoming_count_limit and self.transfer_incoming_bytes >= threshold
        return bool(enough or self.transfer_incoming_bytes >= self.transfer_incoming_bytes_limit)


class Mutating(WorkerState):  # type: ignore[misc]
    """3A: as today, but keys that come later are added to instructions that were issued and not yet acted on.

    The worker has to tell the state when it acts on one (`acted_on`). No event says so, hence a replay of the events
    alone puts keys into requests that never had them.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.unsent: dict[str, GatherDep] = {}

    def acted_on(self, worker: str) -> None:
        self.unsent.pop(worker, None)

    def _ensure_communicating(self, *, stimulus_id: str) -> RecsInstrs:
        added = self._add_to_unsent() if self.running else {}
        recommendations, instructions = super()._ensure_communicating(stimulus_id=stimulus_id)
        self.unsent.update({request.worker: request for request in instructions})
        return {**added, **recommendations}, instructions

    def _add_to_unsent(self) -> Recs:
        recommendations: Recs = {}
        for worker, request in self.unsent.items():
            available = self.data_needed.get(worker)
            while available and not self._task_exceeds_transfer_limits(available.peek(), request.total_nbytes):
                ts = available.peek()
                for holder in ts.who_has:
                    self.data_needed[holder].remove(ts)
                request.to_gather.add(ts.key)  # the very set that in_flight_workers holds
                request.total_nbytes += ts.get_nbytes()
                self.transfer_incoming_bytes += ts.get_nbytes()
                recommendations[ts] = ("flight", worker)
        return recommendations

    def _handle_event(self, ev: StateMachineEvent) -> RecsInstrs:
        if isinstance(ev, GatherDepDoneEvent):
            self.unsent.pop(ev.worker, None)
        return super()._handle_event(ev)
