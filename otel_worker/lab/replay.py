"""Recordings and cluster dumps as cases: what the worker was told drives the policies, what happened is the yardstick.

Events from outside (compute-task, acquire-replicas, …) come when they came. Answers to requests, and ends of tasks, are
left to the simulation, with the durations of the recording: a peer's costs are fitted to the requests that were recorded.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distributed.worker_state_machine import ExecuteDoneEvent, GatherDep

from otel_worker.lab.demand import Arrival, Case, LabError, Limits, Peer
from otel_worker.lab.measure import Ordered
from otel_worker.lab.policies import Current
from otel_worker.lab.recorded import Recorded, event_of
from otel_worker.lab.recording import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_worker.lab.results import Result

#: events that come from the scheduler or the client; all others are consequences
FROM_OUTSIDE = frozenset(
    {
        "AcquireReplicasEvent",
        "CancelComputeEvent",
        "ComputeTaskEvent",
        "FreeKeysEvent",
        "PauseEvent",
        "RefreshWhoHasEvent",
        "RemoveReplicasEvent",
        "RemoveWorkerEvent",
        "UnpauseEvent",
        "UpdateDataEvent",
    }
)
GATHERED = frozenset(
    {"GatherDepSuccessEvent", "GatherDepBusyEvent", "GatherDepNetworkFailureEvent", "GatherDepFailureEvent"}
)
#: bytes up to which a request's duration is mostly overhead
SMALL = 1_000_000
#: bytes from which it is mostly transfer
LARGE = 4_000_000


# --- a case of it -------------------------------------------------------------------------------------------------------


def case_of(recordings: Iterable[Recorded], name: str) -> Case:
    """The case that a recording makes; raises LabError if nothing in it can be replayed."""
    recordings = [recorded for recorded in recordings if recorded.events]
    if not recordings:
        raise LabError(f"{name} contains no events of any worker.")
    origin = min(recorded.events[0][0] for recorded in recordings)
    for recorded in recordings:
        recorded.shift(origin)
    executed = {
        event["key"]: max(0.0, float(event.get("stop") or 0) - float(event.get("start") or 0))
        for recorded in recordings
        for _, event in recorded.events
        if event["cls"] == "ExecuteSuccessEvent"
    }
    results = {
        event["key"]: int(event.get("nbytes") or 1)
        for recorded in recordings
        for _, event in recorded.events
        if event["cls"] == "ExecuteSuccessEvent"
    }
    arrivals = [arrival for recorded in recordings for arrival in arrivals_of(recorded)]
    if not arrivals:
        raise LabError(f"{name} contains no event that came from outside a worker.")
    first = recordings[0]
    given = {field_: first.limits.get(limit) for field_, limit in zip(vars(Limits()), LIMITS, strict=True)}
    limits: dict[str, Any] = {field_: limit for field_, limit in given.items() if limit is not None}
    return Case(
        name,
        tuple(arrivals),
        limits=replace(Limits(), **limits),
        peer=fitted(recordings),
        durations=executed,
        results=results,
        nthreads=max(recorded.nthreads for recorded in recordings),
        happened=happened(recordings),
    )


def arrivals_of(recorded: Recorded) -> Iterator[Arrival]:
    """What came from outside. What the scheduler said because a task had ended still waits for that task."""
    ours = {event["key"] for _, event in recorded.events if event["cls"] == "ExecuteSuccessEvent"}
    done: set[str] = set()
    users: dict[str, set[str]] = {}
    for at, event in recorded.events:
        after: set[str] = set()
        if event["cls"] == "ExecuteSuccessEvent":
            done.add(event["key"])
        elif event["cls"] == "ComputeTaskEvent":
            after = {key for key, holders in event["who_has"].items() if recorded.worker in holders} & ours
            for key in event["who_has"]:
                users.setdefault(key, set()).add(event["key"])
        elif event["cls"] in ("FreeKeysEvent", "RemoveReplicasEvent"):
            after = {task for key in event["keys"] for task in users.get(key, set()) | {key}} & done
        if event["cls"] in FROM_OUTSIDE:
            yield Arrival(max(0.0, at), recorded.worker, event_of(event), tuple(sorted(after)))


# --- what happened ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """A request that was recorded."""

    peer: str
    issued: float
    seconds: float
    keys: int
    nbytes: int
    first: bool


def timings(recorded: Recorded) -> list[Timing]:
    """Every recorded request that has its answer in the recording, too."""
    open_requests: dict[str, tuple[float, list[str]]] = {}
    met: set[str] = set()
    found = []
    order: list[tuple[float, int, str, list[str], dict[str, Any] | None]] = []
    order += [(at, 1, worker, keys, None) for at, worker, keys in recorded.requests]
    order += [(at, 0, event["worker"], [], event) for at, event in recorded.events if event["cls"] in GATHERED]
    for at, _, worker, keys, event in sorted(order, key=lambda each: each[:2]):
        if event is None:
            open_requests[worker] = (at, keys)
        elif worker in open_requests:
            issued, asked = open_requests.pop(worker)
            if event["cls"] == "GatherDepSuccessEvent":
                found.append(
                    Timing(worker, issued, at - issued, len(asked), int(event["total_nbytes"]), worker not in met)
                )
            met.add(worker)
    return found


def fitted(recordings: list[Recorded]) -> Peer:
    """A peer's costs: large requests give the bandwidth, what small ones take beyond it is the overhead, most of it latency.

    A recording does not say which part of the overhead kept an event loop busy, so most of it is none that others wait for.
    """
    every = [timing for recorded in recordings for timing in timings(recorded)]
    peer = Peer()
    rates = [rate for recorded in recordings if (rate := throughput(timings(recorded))) is not None]
    bandwidth = statistics.median(rates) if rates else peer.bandwidth
    again = [timing for timing in every if not timing.first]
    small = [max(0.0, each.seconds - each.nbytes / bandwidth) for each in again or every if each.nbytes < SMALL]
    overhead = statistics.median(small) if small else 2 * (peer.latency + peer.request_seconds)
    firsts = [
        timing.seconds - timing.nbytes / bandwidth - overhead
        for timing in every
        if timing.first and timing.nbytes < SMALL
    ]
    connect = max(0.0, statistics.median(firsts)) if firsts and again else 0.0
    few = statistics.median([timing.keys for timing in again or every]) if every else 1
    loop = min(peer.request_seconds, overhead / 8)
    per_key = min(peer.key_seconds, overhead / 8 / max(1.0, few))
    latency = max(0.0, overhead - 2 * loop - 2 * per_key * few) / 2
    return replace(
        peer, latency=latency, connect=connect, bandwidth=bandwidth, request_seconds=loop, key_seconds=per_key
    )


def throughput(requests: list[Timing]) -> float | None:
    """Bytes a second that a worker received while any large request was open: they share its link."""
    large = sorted((timing.issued, timing.issued + timing.seconds) for timing in requests if timing.nbytes >= LARGE)
    active, reached = 0.0, -math.inf
    for start, stop in large:
        active += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return sum(timing.nbytes for timing in requests if timing.nbytes >= LARGE) / active if active else None


def happened(recordings: list[Recorded]) -> dict[str, float | None]:
    """The figures of `results.py` that a recording has, of what really happened."""
    requests, keys, nbytes = 0, 0, 0
    ready: list[float] = []
    waits: list[float] = []
    for recorded in recordings:
        done = timings(recorded)
        requests += len(done)
        keys += sum(timing.keys for timing in done)
        nbytes += sum(timing.nbytes for timing in done)
        came: dict[str, float] = {}
        for at, event in recorded.events:
            if event["cls"] == "GatherDepSuccessEvent":
                came.update(dict.fromkeys(event["data"], at))
        for at, event in recorded.events:
            arrived = (
                [came[key] for key in event.get("nbytes") or () if key in came]
                if event["cls"] == "ComputeTaskEvent"
                else []
            )
            if arrived and max(arrived) >= at:
                ready.append(max(arrived))
                waits.append(max(arrived) - at)
    return {
        "requests": requests,
        "keys": keys,
        "nbytes": nbytes,
        "first_ready": min(ready, default=None),
        "last_ready": max(ready, default=None),
        "mean_wait": statistics.fmean(waits) if waits else None,
    }


# --- how near -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nearness:
    """How near a replay under `current` comes: the figure in the recording, in the simulation, and their ratio."""

    figure: str
    recorded: float
    replayed: float

    @property
    def ratio(self) -> float:
        return self.replayed / self.recorded if self.recorded else math.nan


def nearness(case: Case, current: Result) -> list[Nearness]:
    """The simulation of a recorded case under `current`, figure by figure."""
    return [
        Nearness(figure, value, getattr(current, figure))
        for figure, value in case.happened.items()
        if value is not None and getattr(current, figure) is not None
    ]


def decided(recorded: Recorded) -> list[tuple[str, tuple[str, ...]]]:
    """The requests that a fresh WorkerState makes of every recorded event, the answers to requests too.

    A recording that began in the middle of things is followed as far as it makes sense.
    """
    policy = type("Replayed", (Ordered, Current), {})
    state = policy(address=recorded.worker, nthreads=recorded.nthreads, validate=False)
    for name, limit in recorded.limits.items():
        if limit is not None:
            setattr(state, name, limit)
    made: list[tuple[str, tuple[str, ...]]] = []
    for _, each in recorded.events:
        event = event_of(each)
        if isinstance(event, ExecuteDoneEvent) and event.key not in state.tasks:
            continue
        try:
            instructions = state.handle_stimulus(event)
        except (KeyError, AssertionError):
            break
        made += [(one.worker, tuple(sorted(one.to_gather))) for one in instructions if isinstance(one, GatherDep)]
    return made


def decisions(recorded: Recorded) -> tuple[int, int]:
    """(decisions alike, decisions recorded), where the recorded events and answers are given and nothing is simulated.

    All that can differ is what Dask leaves to chance: ties that it settles by the order of a set.
    """
    made = set(decided(recorded))
    asked = [(worker, tuple(sorted(keys))) for _, worker, keys in recorded.requests]
    return sum(1 for request in asked if request in made), len(asked)
