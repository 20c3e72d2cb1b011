"""What a run comes to: the figures by which policies are compared. Pure arithmetic on facts; seconds and bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from otel_worker.lab.demand import label
from otel_worker.lab.waits import REASONS, Waits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_worker.lab.facts import Dependent, Request, WorkerFacts


@dataclass(frozen=True)
class Transfer:
    """A request as it is shown on a time axis."""

    worker: str
    peer: str
    start: float
    sent: float
    stop: float
    keys: int
    nbytes: int
    outcome: str


@dataclass(frozen=True)
class Result:
    """One policy on one case. Requests are those that were sent; what is `None` was not measured or did not happen."""

    policy: str
    workers: int
    requests: int
    busy_replies: int
    dropped: int
    keys: int
    nbytes: int
    keys_a_request: float
    keys_a_request_max: int
    bytes_a_request: float
    bytes_a_request_max: int
    parallel_max: int
    parallel_mean: float
    first_ready: float | None
    last_ready: float | None
    mean_ready: float | None
    unready: int
    first_key: float | None
    last_key: float | None
    mean_wait: float | None
    wait: dict[str, float]
    stimuli: int
    heap_operations: int | None
    heap_operations_a_stimulus: float | None
    decision_cpu_a_stimulus: float | None
    stimulus_cpu_a_stimulus: float | None
    transfers: list[Transfer] = field(default_factory=list, repr=False)

    def to_dict(self, *, transfers: bool = True) -> dict[str, Any]:
        result = asdict(self)
        if not transfers:
            del result["transfers"]
        return result


def evaluate(policy: str, facts: Mapping[str, WorkerFacts]) -> Result:
    """The figures of a run, over all its workers."""
    every = list(facts.values())
    sent = [request for worker in every for request in worker.requests if request.keys]
    good = [request for request in sent if request.outcome == "success"]
    dependents = [dependent for worker in every for dependent in waited(worker)]
    ready = [dependent.ready for dependent in dependents if dependent.ready is not None]
    arrived = [at for worker in every for at in worker.arrived()]
    waits = [
        waits.of(dependent)
        for worker in every
        for waits in [Waits(worker)]
        for dependent in waited(worker)
        if dependent.ready is not None
    ]
    stimuli = sum(worker.stimuli for worker in every)
    operations = total(worker.heap_operations for worker in every)
    mean_wait = {reason: mean([wait[reason] for wait in waits]) or 0.0 for reason in REASONS}
    return Result(
        policy=policy,
        workers=len(every),
        requests=len(sent),
        busy_replies=sum(request.outcome == "busy" for request in sent),
        dropped=sum(request.outcome == "dropped" for worker in every for request in worker.requests),
        keys=sum(len(request.keys) for request in good),
        nbytes=sum(request.nbytes for request in good),
        keys_a_request=mean([len(request.keys) for request in sent]) or 0.0,
        keys_a_request_max=max((len(request.keys) for request in sent), default=0),
        bytes_a_request=mean([request.nbytes for request in sent]) or 0.0,
        bytes_a_request_max=max((request.nbytes for request in sent), default=0),
        parallel_max=max((parallel(worker.requests)[0] for worker in every), default=0),
        parallel_mean=mean([parallel(worker.requests)[1] for worker in every if worker.requests]) or 0.0,
        first_ready=min(ready, default=None),
        last_ready=max(ready, default=None),
        mean_ready=mean(ready),
        unready=len(dependents) - len(ready),
        first_key=min(arrived, default=None),
        last_key=max(arrived, default=None),
        mean_wait=sum(mean_wait.values()) if waits else None,
        wait=mean_wait,
        stimuli=stimuli,
        heap_operations=None if operations is None else round(operations),
        heap_operations_a_stimulus=None if operations is None or not stimuli else operations / stimuli,
        decision_cpu_a_stimulus=per(total(worker.decision_seconds for worker in every), stimuli),
        stimulus_cpu_a_stimulus=per(total(worker.stimulus_seconds for worker in every), stimuli),
        transfers=[transfer(request) for request in sent if request.finished is not None],
    )


def waited(worker: WorkerFacts) -> list[Dependent]:
    """The tasks of which at least one dependency had to come from elsewhere."""
    return [each for each in worker.dependents.values() if any(key in worker.spans for key in each.needs)]


def transfer(request: Request) -> Transfer:
    finished = request.finished if request.finished is not None else request.issued
    return Transfer(
        worker=label(request.worker),
        peer=label(request.peer),
        start=request.issued,
        sent=request.issued if request.connected is None else request.connected,
        stop=finished,
        keys=len(request.keys),
        nbytes=request.nbytes,
        outcome=request.outcome,
    )


def parallel(requests: Iterable[Request]) -> tuple[int, float]:
    """Most requests open at once, and their mean over the time in which any was."""
    changes = sorted(
        change
        for request in requests
        if request.finished is not None and request.keys
        for change in ((request.issued, 1), (request.finished, -1))
    )
    if not changes:
        return 0, 0.0
    times = [at for at, _ in changes]
    levels = list(accumulate(step for _, step in changes))
    durations = [stop - start for start, stop in pairwise(times)]
    active = sum(duration for duration, level in zip(durations, levels, strict=False) if level)
    area = sum(duration * level for duration, level in zip(durations, levels, strict=False))
    return max(levels), area / active if active else 0.0


def mean(values: list[float] | list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def per(value: float | None, count: int) -> float | None:
    return None if value is None or not count else value / count
