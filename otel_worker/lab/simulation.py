"""Runs a case under a policy: SimPy keeps the time, Dask's WorkerState decides, `network.py` shares the bandwidth."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import simpy
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    Execute,
    ExecuteSuccessEvent,
    GatherDep,
    GatherDepBusyEvent,
    GatherDepSuccessEvent,
    RefreshWhoHasEvent,
    RequestRefreshWhoHasMsg,
    RetryBusyWorkerEvent,
    RetryBusyWorkerLater,
)

from otel_worker import names
from otel_worker.lab.facts import Dependent, Observer, Request, WorkerFacts
from otel_worker.lab.late import LateBinding, Mutating, StartGatherEvent
from otel_worker.lab.measure import instrumented, seeded
from otel_worker.lab.network import Wire
from otel_worker.lab.policies import ALL_POLICIES, LoadAware

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from distributed.worker_state_machine import Instruction, StateMachineEvent, WorkerState

    from otel_worker.lab.demand import Arrival, Case

    Steps = Generator[simpy.Event, Any, None]

#: seconds that Dask leaves a busy peer alone (`Worker.retry_busy_worker_later`)
RETRY_BUSY = 0.15
#: seconds from a worker's question to the scheduler to its answer
SCHEDULER = 0.002


class Run:
    """One case under one policy. After `run()`, `facts` tells what happened, by worker."""

    def __init__(
        self,
        case: Case,
        policy: str,
        *,
        seed: int = 0,
        validate: bool = False,
        cpu: bool = True,
        operations: bool = True,
        until: float | None = None,
    ) -> None:
        self.case = case
        self.until = until
        self.validate = validate
        self.env = simpy.Environment()
        self.wire = Wire(self.env, case.of)
        self.loops: dict[str, simpy.Resource] = defaultdict(lambda: simpy.Resource(self.env, capacity=1))
        self.outgoing_count: dict[str, int] = defaultdict(int)
        self.outgoing_bytes: dict[str, int] = defaultdict(int)
        self.executed: dict[Any, simpy.Event] = defaultdict(self.env.event)
        self.holders: dict[Any, tuple[str, ...]] = {}
        cls = instrumented(ALL_POLICIES[policy], cpu=cpu, operations=operations)
        self.workers = {worker: SimulatedWorker(self, worker, cls, seed) for worker in case.workers}

    @property
    def facts(self) -> dict[str, WorkerFacts]:
        return {address: worker.facts for address, worker in self.workers.items()}

    @property
    def states(self) -> dict[str, WorkerState]:
        return {address: worker.state for address, worker in self.workers.items()}

    def run(self) -> Run:
        given = sorted((arrival for arrival in self.case.arrivals if not arrival.after), key=lambda each: each.at)
        for at, batch in groupby(given, key=lambda each: each.at):
            self.env.process(self._deliver(at, list(batch)))
        for arrival in self.case.arrivals:
            if arrival.after:
                self.env.process(self._deliver_after(arrival))
        self.env.run(until=self.until)
        for worker in self.workers.values():
            worker.finish()
        return self

    def _deliver(self, at: float, batch: list[Arrival]) -> Steps:
        """All that the scheduler sends at one time is handled in one turn of the event loop, a stimulus each."""
        yield self.env.timeout(at)
        for arrival in batch:
            self.workers[arrival.worker].handle(arrival.event)

    def _deliver_after(self, arrival: Arrival) -> Steps:
        yield self.env.all_of([self.executed[key] for key in arrival.after])
        yield self.env.timeout(max(SCHEDULER, arrival.at - self.env.now))
        self.workers[arrival.worker].handle(arrival.event)

    def busy(self, peer: str, nbytes: int) -> bool:
        limits = self.case.of(peer)
        if self.env.now % limits.busy_every < limits.busy_for or self.outgoing_count[peer] >= limits.outgoing_count:
            return True
        return bool(self.outgoing_count[peer]) and self.outgoing_bytes[peer] + nbytes > limits.outgoing_bytes


class SimulatedWorker:
    """Does to a WorkerState what Dask's BaseWorker does: hands events in, acts on instructions."""

    def __init__(self, run: Run, worker: str, policy: type[WorkerState], seed: int) -> None:
        self.run = run
        self.env = run.env
        self.address = worker
        self.facts = WorkerFacts(worker)
        self.observer = Observer(self.facts, lambda: self.env.now, self._known_holders)
        options: dict[str, Any] = {"clock": lambda: self.env.now} if issubclass(policy, LoadAware) else {}
        self.state = policy(
            address=worker,
            nthreads=run.case.nthreads,
            validate=run.validate,
            plugins={"lab": self.observer},
            **options,
        )
        seeded(self.state, seed)
        run.case.limits.apply(self.state)
        self.connections: set[str] = set()
        self.actions: dict[type[Instruction], Callable[[Any], Steps]] = {
            GatherDep: self._gather,
            Execute: self._execute,
            RetryBusyWorkerLater: self._retry_busy,
            RequestRefreshWhoHasMsg: self._refresh_who_has,
        }

    def handle(self, event: StateMachineEvent) -> None:
        self.facts.stimuli += 1
        if isinstance(event, ComputeTaskEvent):
            self.facts.dependents.setdefault(event.key, Dependent(event.key, tuple(event.nbytes), self.env.now))
        for key, holders in getattr(event, "who_has", {}).items():
            self.run.holders[key] = tuple(sorted(holders))
        instructions = self.state.handle_stimulus(event)
        if isinstance(event, RefreshWhoHasEvent):
            for key in event.who_has:
                self.observer.holders_changed(key)
        self._hold_back()
        if self.run.validate:
            self.state.validate_state()
        self._act_on(instructions)

    def _act_on(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            action = self.actions.get(type(instruction))
            if action is not None:
                self.env.process(action(instruction))

    def _known_holders(self, key: Any) -> tuple[str, ...]:
        return tuple(sorted(self.state.tasks[key].who_has))

    def _hold_back(self) -> None:
        """Why a key stays in `fetch` although a holder could be asked; else the holders are the reason."""
        state = self.state
        if not state.running:
            reason = names.QUEUED_PAUSED
        elif state.transfer_incoming_bytes >= state.transfer_incoming_bytes_limit:
            reason = names.QUEUED_BYTES
        elif state._should_throttle_incoming_transfers():
            reason = names.QUEUED_COUNT
        else:
            reason = names.QUEUED_HEAD_OF_LINE
        if not self.facts.held_back or self.facts.held_back[-1][1] != reason:
            self.facts.held_back.append((self.env.now, reason))

    # --- instructions ------------------------------------------------------------------------------------------------

    def _gather(self, instruction: GatherDep) -> Steps:
        peer, mine = self.run.case.of(instruction.worker), self.run.case.of(self.address)
        request = Request(self.address, instruction.worker, issued=self.env.now)
        self.facts.requests.append(request)
        yield self.env.timeout(0 if request.peer in self.connections else peer.connect)
        self.connections.add(request.peer)
        request.connected = self.env.now
        if not self._send(instruction, request):
            return
        yield self.env.timeout(peer.latency)
        with self.run.loops[request.peer].request() as turn:
            yield turn
            yield self.env.timeout(peer.request_seconds)
            busy = self.run.busy(request.peer, request.nbytes)
            if not busy:
                self.run.outgoing_count[request.peer] += 1
                self.run.outgoing_bytes[request.peer] += request.nbytes
                yield self.env.timeout(peer.key_seconds * len(request.keys))
        request.served = self.env.now
        if not busy:
            yield self.run.wire.transfer(request.peer, self.address, request.nbytes)
        yield self.env.timeout(peer.latency)
        request.received = self.env.now
        with self.run.loops[self.address].request() as turn:
            yield turn
            yield self.env.timeout(0 if busy else mine.request_seconds + mine.key_seconds * len(request.keys))
        if not busy:
            self.run.outgoing_count[request.peer] -= 1
            self.run.outgoing_bytes[request.peer] -= request.nbytes
        self._finish(request, busy=busy)

    def _send(self, instruction: GatherDep, request: Request) -> bool:
        """The instruction is acted on: what it asks for is final now. False: there is nothing left to ask for."""
        if isinstance(self.state, LateBinding):
            event = StartGatherEvent(worker=request.peer, stimulus_id=f"start-gather-{request.peer}-{self.env.now}")
            self.facts.stimuli += 1
            chosen: list[Instruction] = []
            others: list[Instruction] = []
            for each in self.state.handle_stimulus(event):
                mine = isinstance(each, GatherDep) and each.worker == request.peer and each.to_gather
                (chosen if mine else others).append(each)
            self._hold_back()
            if self.run.validate:
                self.state.validate_state()
            self._act_on(others)
            if not chosen:
                request.outcome, request.finished = "dropped", self.env.now
                return False
            (instruction,) = chosen
        elif isinstance(self.state, Mutating):
            self.state.acted_on(request.peer)
        request.keys = tuple(sorted(instruction.to_gather, key=str))
        request.nbytes = instruction.total_nbytes
        for key in request.keys:
            spans = self.facts.spans.get(key)
            if spans:
                spans[-1].request = request
        return True

    def _finish(self, request: Request, *, busy: bool) -> None:
        request.finished = self.env.now
        request.outcome = "busy" if busy else "success"
        common = {
            "worker": request.peer,
            "total_nbytes": request.nbytes,
            "stimulus_id": f"gather-dep-{request.outcome}-{request.peer}-{self.env.now}",
        }
        if busy:
            self.handle(GatherDepBusyEvent(**common))
        else:
            self.handle(GatherDepSuccessEvent(data=dict.fromkeys(request.keys), **common))

    def _retry_busy(self, instruction: RetryBusyWorkerLater) -> Steps:
        start = self.env.now
        yield self.env.timeout(RETRY_BUSY)
        self.facts.busy.setdefault(instruction.worker, []).append((start, self.env.now))
        self.handle(RetryBusyWorkerEvent(worker=instruction.worker, stimulus_id=f"retry-busy-{self.env.now}"))

    def _refresh_who_has(self, instruction: RequestRefreshWhoHasMsg) -> Steps:
        yield self.env.timeout(SCHEDULER)
        who_has = {key: list(self.run.holders[key]) for key in instruction.keys if key in self.run.holders}
        self.handle(RefreshWhoHasEvent(who_has=who_has, stimulus_id=f"refresh-who-has-{self.env.now}"))

    def _execute(self, instruction: Execute) -> Steps:
        yield self.env.timeout(self.run.case.durations.get(instruction.key, 0.0))
        ts = self.state.tasks[instruction.key]
        self.handle(
            ExecuteSuccessEvent.dummy(
                instruction.key,
                run_id=ts.run_id,
                nbytes=self.run.case.results.get(instruction.key, 1),
                stimulus_id=f"execute-success-{instruction.key}",
            )
        )
        if not self.run.executed[instruction.key].triggered:
            self.run.executed[instruction.key].succeed()

    def finish(self) -> None:
        """Takes the counts over from the state."""
        for name in ("stimulus_seconds", "decision_seconds", "heap_operations"):
            setattr(self.facts, name, getattr(self.state, name, None))


def first_round(case: Case, policy: str, *, seed: int = 0, validate: bool = False) -> list[tuple[str, int, int]]:
    """What a worker asks for before any answer comes: (peer, number of keys, bytes), in the order of asking."""
    connected = max(peer.connect for peer in (case.peer, *case.peers.values())) * 1.001 + 1e-9
    started = Run(case, policy, seed=seed, validate=validate, cpu=False, operations=False, until=connected)
    (facts,) = started.run().facts.values()
    return [(request.peer, len(request.keys), request.nbytes) for request in facts.requests if request.keys]
