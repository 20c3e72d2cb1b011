"""Method `critical_path`: which fetch, in which of its phases, a task was really waiting for."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from otel_worker import names
from otel_worker.breakdown.apportion import add, apportion
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.tasks import OTHER, Task, phase_parts
from otel_worker.breakdown.timeline import timeline
from otel_worker.traces import Ref, Span, children

_SLACK = 10_000  # nanoseconds between one attempt's end and the next one's beginning that are no gap


@dataclass(frozen=True, slots=True)
class Fetches:
    """Which fetches served which task: those below its `waiting`, and those that links name."""

    below: Mapping[Ref, list[Span]]
    linked: Mapping[Ref, list[Span]]  # task -> fetches

    def of(self, task: Task) -> list[Span]:
        if task.waiting is None:
            return []
        own = [s for s in self.below.get(task.waiting.ref, []) if s.operation == names.FETCH]
        return list({s.ref: s for s in (*own, *self.linked.get(task.span.ref, []))}.values())


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a wait, and the fetch that it was spent on (None: no fetch was going on)."""

    start: int
    end: int
    fetch: Span | None  # or, in a queue between two attempts, the next of them
    parts: Mapping[str, int]  # nanoseconds by activity


def fetches(ours: Ours, tasks: Iterable[Task]) -> Fetches:
    """What `tasks` need to be told; a few of them cost little, however many spans there are."""
    wanted = list(tasks)
    linked = _linked(ours, {t.span.ref for t in wanted})
    below = _children(ours[names.FETCH], {t.waiting.ref for t in wanted if t.waiting})
    parents = {f.ref for many in (*below.values(), *linked.values()) for f in many}
    for operations in _LEVELS:
        found = _children(ours.of(*operations), parents)
        parents = {s.ref for many in found.values() for s in many}
        below.update(found)
    return Fetches(below, linked)


# What stands below a fetch, level by level.
_LEVELS = (
    (names.FETCH_QUEUED, names.CONNECT, names.REQUEST, names.FETCH_DESERIALIZE, names.SPILL),
    (names.CONNECT_POOL, names.CONNECT_DIAL, names.CONNECT_HANDSHAKE, names.GET_DATA),
    (names.UNSPILL, names.SPILL, names.GET_DATA_SERIALIZE, names.GET_DATA_SEND),
)


def _children(spans: Iterable[Span], parents: AbstractSet[Ref]) -> dict[Ref, list[Span]]:
    ids = {span_id for _, span_id in parents}  # cheap to look into, and nearly as good: most spans fail there
    return children(s for s in spans if s.parent_id in ids and s.parent_ref in parents)


def _linked(ours: Ours, wanted: AbstractSet[Ref]) -> dict[Ref, list[Span]]:
    """Task -> the fetches that it links to, or that link to it."""
    linked: dict[Ref, list[Span]] = defaultdict(list)
    linking: dict[Ref, list[Ref]] = defaultdict(list)  # fetch -> tasks
    for task in ours[names.TASK]:
        if task.links and task.ref in wanted:
            for link in task.links:
                linking[link.ref].append(task.ref)
    for fetch in ours[names.FETCH]:
        targets = [link.ref for link in fetch.links] if fetch.links else []
        for ref in (*targets, *(linking.get(fetch.ref, ()) if linking else ())):
            if ref in wanted:
                linked[ref].append(fetch)
    return dict(linked)


def critical_parts(task: Task, held: Fetches) -> Mapping[str, int]:
    """The task's parts with its wait told anew; their sum stays what it was."""
    steps = critical_steps(task, held)
    if not steps:
        return task.parts
    parts = {path: part for path, part in task.parts.items() if not path.startswith(f"{names.WAITING}.")}
    for step in steps:
        add(parts, {f"{names.WAITING}.{activity}": part for activity, part in step.parts.items()})
    return parts


def critical_steps(task: Task, held: Fetches) -> list[Step]:
    """Walk back from the end of the wait: the fetch that arrived last, then what had to end before it began."""
    if task.waiting is None:
        return []
    start = task.waiting.start
    end = start + sum(phase_parts(task.waiting).values())
    found = list(_walk_back(start, end, held.of(task), held.below))
    found.reverse()
    return _queued_between(found, task) if any(step.fetch is None for step in found) else found


def _queued_between(steps: list[Step], task: Task) -> list[Step]:
    """Between two attempts a key is queued, as while its peer is busy: the worker told how long, the spans do not."""
    lacking = {activity: part for activity, part in _told(task).items() if activity.startswith(_QUEUED)}
    for step in steps:
        for activity in lacking:
            lacking[activity] -= step.parts.get(activity, 0)
    lacking = {activity: part for activity, part in lacking.items() if part > 0}
    found: list[Step] = []
    following: Span | None = None
    for step in reversed(steps):
        found.append(step if step.fetch else _queued(step, following, lacking))
        following = step.fetch or following
    found.reverse()
    return found


_QUEUED = ("queued", names.MISSING)


def _queued(gap: Step, following: Span | None, lacking: dict[str, int]) -> Step:
    """Takes of `lacking` what the gap can hold."""
    length = gap.end - gap.start
    parts = apportion(min(length, sum(lacking.values())), lacking)
    for activity, part in parts.items():
        lacking[activity] -= part
    if rest := length - sum(parts.values()):
        parts[OTHER] = rest
    return Step(gap.start, gap.end, following if parts.keys() - {OTHER} else None, parts)


def _told(task: Task) -> dict[str, int]:
    prefix = f"{names.WAITING}."
    return {path[len(prefix) :]: part for path, part in task.parts.items() if path.startswith(prefix)}


def _walk_back(start: int, end: int, served: list[Span], below: Mapping[Ref, list[Span]]) -> Iterator[Step]:
    left = [f for f in served if f.end > start and f.start < end]
    at = end
    while at > start:
        last = max((f for f in left if f.start < at), key=lambda f: (min(f.end, at), -f.start), default=None)
        if last is None:
            yield Step(start, at, None, {OTHER: at - start})
            return
        left.remove(last)
        until = min(last.end, at)
        if at - until > _SLACK:
            yield Step(until, at, None, {OTHER: at - until})
            at = until
        begin = max(start, last.start)
        yield Step(begin, at, last, _parts(last, begin, at, below))
        at = begin


def _parts(fetch: Span, start: int, end: int, below: Mapping[Ref, list[Span]]) -> dict[str, int]:
    """What lies past the fetch's end, by no more than the slack, belongs to its last phase."""
    parts: dict[str, int] = {}
    stretches = timeline(fetch, below)
    for stretch in stretches:
        add(parts, stretch.within(start, end))
    rest = end - start - sum(parts.values())
    if rest:
        last = stretches[-1].shares if stretches else {OTHER: 1.0}
        add(parts, {max(last, key=last.__getitem__): rest})
    return parts
