"""What is wanted from whom: the list of events that drives every policy, the limits, and the peers that answer.

The events are Dask's own (`ComputeTaskEvent`, `AcquireReplicasEvent`, …); sizes in bytes, times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from distributed.worker_state_machine import AcquireReplicasEvent, ComputeTaskEvent, PauseEvent, UnpauseEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from distributed.worker_state_machine import StateMachineEvent, WorkerState

#: the worker that asks, where a case has only one
ME = "me"


class LabError(Exception):
    """Something about the input that its author can mend: one sentence, shown without a traceback."""


def address(name: str) -> str:
    """The address of a worker by its name. Whoever writes host:port puts several workers on one host."""
    return name if ":" in name else f"{name}:1"


def label(worker: str) -> str:
    """The name of a worker by its address: the reverse of `address`."""
    return worker[:-2] if worker.endswith(":1") and worker.count(":") == 1 else worker


@dataclass(frozen=True)
class Limits:
    """A worker's own limits, as Dask names them; the defaults are Dask's (no byte limit: it depends on the memory)."""

    incoming_count: int = 10
    throttle_threshold: int = 10_000_000
    incoming_bytes: float = math.inf
    message_bytes: float = 50_000_000

    def apply(self, state: WorkerState) -> None:
        state.transfer_incoming_count_limit = self.incoming_count
        state.transfer_incoming_bytes_throttle_threshold = self.throttle_threshold
        state.transfer_incoming_bytes_limit = self.incoming_bytes
        state.transfer_message_bytes_limit = self.message_bytes


@dataclass(frozen=True)
class Peer:
    """What a worker costs those who talk to it. The defaults are chosen, for a quiet cluster in one rack."""

    #: one way, seconds
    latency: float = 0.000_2
    #: dial and handshake of the first request between two workers, seconds
    connect: float = 0.003
    #: bytes a second, each way, shared equally by the transfers at that time
    bandwidth: float = 500_000_000.0
    #: event loop of either side, seconds a request and seconds a key; one thing at a time
    request_seconds: float = 0.001
    key_seconds: float = 0.000_05
    #: more outgoing transfers than this, or more bytes asked for: "busy"
    outgoing_count: float = 50
    outgoing_bytes: float = math.inf
    #: transfers to workers outside the case: each takes a share of the bandwidth
    load: int = 0
    #: others keep it so busy that it refuses every request for the first `busy_for` of each `busy_every` seconds
    busy_for: float = 0.0
    busy_every: float = 1.0


@dataclass(frozen=True)
class Arrival:
    """An event that reaches a worker: `at` seconds after the start, and not before the tasks in `after` were executed."""

    at: float
    worker: str
    event: StateMachineEvent
    after: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Case:
    """One thing to try every policy on."""

    name: str
    arrivals: tuple[Arrival, ...]
    limits: Limits = Limits()
    peer: Peer = Peer()
    #: where a worker differs from `peer`, by address
    peers: Mapping[str, Peer] = field(default_factory=dict)
    #: seconds that a task takes to run, by key; 0 where not said
    durations: Mapping[Any, float] = field(default_factory=dict)
    #: bytes of a task's result, by key; 1 where not said
    results: Mapping[Any, int] = field(default_factory=dict)
    nthreads: int = 1
    #: what really happened, where the case was recorded (`replay.py`)
    happened: Mapping[str, float | None] = field(default_factory=dict)

    def with_limits(self, **limits: Any) -> Case:
        return replace(self, limits=replace(self.limits, **limits))

    def of(self, worker: str) -> Peer:
        return self.peers.get(worker, self.peer)

    @property
    def workers(self) -> list[str]:
        """The addresses of those that decide: the workers to which events come."""
        return sorted({arrival.worker for arrival in self.arrivals})


@dataclass(frozen=True)
class Need:
    """A key that is to be fetched."""

    key: Any
    nbytes: int
    holders: tuple[str, ...]


def compute(
    key: Any, needs: Iterable[Need], *, priority: tuple[int, ...] = (0,), stimulus: str | None = None
) -> ComputeTaskEvent:
    """The scheduler's message that a worker is to compute `key`."""
    needs = list(needs)
    return ComputeTaskEvent.dummy(
        key,
        who_has={need.key: [address(holder) for holder in need.holders] for need in needs},
        nbytes={need.key: need.nbytes for need in needs},
        priority=priority,
        stimulus_id=stimulus or f"compute-task-{key}",
    )


def acquire(needs: Iterable[Need], *, stimulus: str = "acquire-replicas") -> AcquireReplicasEvent:
    """The scheduler's message that a worker is to hold replicas of these keys too."""
    needs = list(needs)
    return AcquireReplicasEvent(
        who_has={need.key: [address(holder) for holder in need.holders] for need in needs},
        nbytes={need.key: need.nbytes for need in needs},
        stimulus_id=stimulus,
    )


def backlog(events: Collection[StateMachineEvent]) -> list[StateMachineEvent]:
    """The events while the worker is paused: all of them are in its queue when it decides for the first time."""
    return [PauseEvent(stimulus_id="pause"), *events, UnpauseEvent(stimulus_id="unpause")]


def arrivals(events: Iterable[StateMachineEvent], *, at: float = 0.0, worker: str = ME) -> list[Arrival]:
    """The events, one after the other, in one turn of the worker's event loop."""
    return [Arrival(at=at, worker=address(worker), event=event) for event in events]
