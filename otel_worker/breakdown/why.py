"""The slowest tasks, and for each the one sentence that explains it."""

import heapq
from collections.abc import Iterable, Mapping

from msgspec import Struct

from otel_worker import names
from otel_worker.breakdown.activities import WORDS
from otel_worker.breakdown.critical import Fetches, critical_steps, fetches
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.tasks import ARRIVAL, OTHER, Task

_DID = {
    ARRIVAL: "took",
    names.WAITING: "waited",
    names.READY: "was ready but did not run for",
    names.EXECUTE: "was executing for",
}


class Reason(Struct, frozen=True):
    """A task, its seconds, and why."""

    key: str
    name: str
    worker: str
    seconds: float
    outcome: str
    trace_id: str
    span_id: str
    part: str  # the path that explains most
    peer: str  # whom it waited for there, where that is known
    sentence: str


def why(tasks: Iterable[Task], ours: Ours, most: int, workers: Mapping[str, str]) -> list[Reason]:
    """The `most` tasks with the most seconds, slowest first; `workers` are their names by address."""
    slowest = heapq.nsmallest(most, (t for t in tasks if t.count == 1), key=lambda t: (-t.total, t.span.start, t.key))
    held = fetches(ours, slowest)
    return [_reason(task, held, workers) for task in slowest]


def _reason(task: Task, held: Fetches, workers: Mapping[str, str]) -> Reason:
    phases = _phases(task.parts)
    phase = max(phases, key=phases.__getitem__, default=OTHER)
    within = {path: part for path, part in task.parts.items() if path.partition(".")[0] == phase}
    part = max(within, key=within.__getitem__, default=OTHER)
    peer = _peer(task, held, part) if phase == names.WAITING else ""
    attributes = task.span.attributes
    return Reason(
        task.key,
        task.span.name,
        task.worker,
        task.total / 1e9,
        str(attributes.get(names.OUTCOME, "")),
        task.span.trace_id,
        task.span.span_id,
        part,
        peer,
        _sentence(phase, phases.get(phase, 0), part, within.get(part, 0), named(peer, workers)) + _blamed(task, part),
    )


def named(address: str, workers: Mapping[str, str]) -> str:
    """People gave names; only addresses are in every span."""
    name = workers.get(address)
    return f"{name} ({address})" if name else address


def _phases(parts: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for path, part in parts.items():
        phase = path.partition(".")[0]
        found[phase] = found.get(phase, 0) + part
    return found


def _sentence(phase: str, whole: int, part: str, length: int, peer: str) -> str:
    """As "waited 3.1 s, 2.4 s of it for tcp://… to read from disk"."""
    did = _DID.get(phase)
    if did is None:
        return f"spent {seconds_text(whole)} between its phases"
    known = WORDS.get(part)
    words = known[1].format(peer=peer or "a peer") if known else f"in {part}"
    return f"{did} {seconds_text(whole)}, {_of_it(length, whole)} of it {words}"


def _blamed(task: Task, part: str) -> str:
    """The key that blocked the event loop, where the worker knew it."""
    key = task.waiting.attributes.get(names.LOOP_BLOCKED_BY) if task.waiting is not None else None
    return f", blocked by {key}" if key and part == f"{names.WAITING}.{names.LOOP}" else ""


def _of_it(length: int, whole: int) -> str:
    return "all" if length >= whole * 0.995 else seconds_text(length)


def _peer(task: Task, held: Fetches, part: str) -> str:
    """Who was waited for in that activity; failing that, who was waited for longest."""
    activity = part.partition(".")[2]
    by_activity: dict[str, int] = {}
    by_length: dict[str, int] = {}
    for step in critical_steps(task, held):
        peer = str(step.fetch.attributes.get(names.PEER_ADDRESS, "")) if step.fetch else ""
        if peer:
            by_activity[peer] = by_activity.get(peer, 0) + step.parts.get(activity, 0)
            by_length[peer] = by_length.get(peer, 0) + step.end - step.start
    told = by_activity if any(by_activity.values()) else by_length
    return max(told, key=told.__getitem__, default="")


def seconds_text(nanoseconds: int) -> str:
    seconds = nanoseconds / 1e9
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds * 1e3:.0f} ms"
