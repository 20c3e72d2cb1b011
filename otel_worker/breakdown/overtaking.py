"""Producers that overtake: a worker ran tasks without dependencies while others only lacked data from its peers."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from otel_worker import names
from otel_worker.breakdown.tasks import Task
from otel_worker.traces import Span, number

_Interval = tuple[int, int]


class Overtaking(Struct, frozen=True):
    """Tasks of `waiting` waited `seconds` (summed over them) while their worker ran tasks of `producer`."""

    waiting: str  # prefix
    producer: str  # prefix
    seconds: float
    share: float  # of all that tasks of `waiting` waited
    waited_tasks: int
    produced_tasks: int
    produced_bytes: int


class _Busy:
    """When a worker ran producers of one prefix: intervals that do not overlap, and the time in them so far."""

    def __init__(self, intervals: Iterable[_Interval]) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.before: list[int] = [0]
        for start, end in merged(intervals):
            self.starts.append(start)
            self.ends.append(end)
            self.before.append(self.before[-1] + end - start)

    def until(self, at: int) -> int:
        """Nanoseconds before `at`."""
        i = bisect_right(self.starts, at)
        return self.before[i] - max(0, self.ends[i - 1] - at) if i else 0


def overtaking(tasks: Iterable[Task]) -> list[Overtaking]:
    """For each pair of prefixes on all workers together, most seconds first."""
    by_worker: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.count == 1:
            by_worker[task.worker].append(task)
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    waited: dict[str, int] = defaultdict(int)
    for members in by_worker.values():
        _add_worker(members, sums, waited)
    found = [
        Overtaking(consumer, producer, ns / 1e9, ns / waited[consumer], tasks_, produced, nbytes)
        for (consumer, producer), (ns, tasks_, produced, nbytes) in sums.items()
        if ns
    ]
    return sorted(found, key=lambda o: (-o.seconds, o.waiting, o.producer))


def _add_worker(members: Sequence[Task], sums: dict[tuple[str, str], list[int]], waited: dict[str, int]) -> None:
    waits: dict[str, list[_Interval]] = defaultdict(list)
    producers: dict[str, list[Task]] = defaultdict(list)
    for task in members:
        if task.waiting is not None:
            waits[task.prefix].append((task.waiting.start, task.waiting.end))
        if task.execute is not None and task.span.attributes.get(names.TASK_DEPENDENCIES) == 0:
            producers[task.prefix].append(task)
    for consumer, intervals in waits.items():
        waited[consumer] += sum(end - start for start, end in intervals)
        for producer, ran in producers.items():
            _add_pair(intervals, ran, sums[consumer, producer])


def _add_pair(intervals: Sequence[_Interval], ran: Sequence[Task], sums: list[int]) -> None:
    busy = _Busy(_interval(t.execute) for t in ran if t.execute)
    overlaps = [busy.until(end) - busy.until(start) for start, end in intervals]
    waiting = _Busy(intervals)
    overtook = [t for t in ran if t.execute and waiting.until(t.execute.end) > waiting.until(t.execute.start)]
    sums[0] += sum(overlaps)
    sums[1] += sum(1 for overlap in overlaps if overlap)
    sums[2] += len(overtook)
    sums[3] += sum(int(number(t.span.attributes.get(names.TASK_NBYTES))) for t in overtook)


def _interval(span: Span) -> _Interval:
    return span.start, span.end


def merged(intervals: Iterable[_Interval], gap: int = 0) -> list[_Interval]:
    """What overlaps, or is at most `gap` apart, as one; by start."""
    found: list[_Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
