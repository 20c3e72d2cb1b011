"""Tasks that have no spans of their own: sums by prefix, until one span `tasks {prefix}` stands for them."""

from __future__ import annotations

from collections import Counter
from heapq import heappushpop
from typing import TYPE_CHECKING

from otel_worker import names, waits

if TYPE_CHECKING:
    from otel_worker.facts import Task

SLOWEST = 3  # of a prefix and interval deserve spans of their own
MAX_COMPUTATIONS = 20


class Group:
    """The tasks of one prefix that ended in one interval and are not recorded."""

    __slots__ = (
        "arrival",
        "began",
        "computations",
        "count",
        "ended",
        "errors",
        "example",
        "execute",
        "offset",
        "outcomes",
        "ready",
        "shortest",
        "slowest",
        "wait",
    )

    def __init__(self, task: Task) -> None:
        self.began = task.arrived
        self.ended = task.ended
        self.offset = task.offset
        self.count = 0
        self.arrival = 0
        self.wait: dict[str, int] = {}  # activity -> ns
        self.ready: dict[str, int] = {}  # reason -> ns
        self.execute: dict[str, int] = {}  # activity -> ns
        self.shortest = self.slowest = -1
        self.example = task.key
        self.errors: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.computations: dict[str, None] = {}

    def add(self, task: Task, own: int) -> None:
        self.count += 1
        if task.arrived < self.began:
            self.began = task.arrived
        self.ended = task.ended
        self.arrival += task.arrival
        if task.wait_parts:
            waits.add(self.wait, task.wait_parts)
        if task.ready_parts:
            waits.add(self.ready, task.ready_parts)
        if task.execute_parts:
            waits.add(self.execute, task.execute_parts)
        if own > self.slowest:
            self.slowest = own
            self.example = task.key
        if self.shortest < 0 or own < self.shortest:
            self.shortest = own
        self.outcomes[task.outcome] += 1
        if task.failure is not None:
            self.errors[task.failure.type] += 1


def own_time(task: Task) -> int:
    """Nanoseconds of a task without `ready`: how long it took, whatever else ran meanwhile."""
    ready = task.ready_parts
    return task.ended - task.arrived - (sum(ready.values()) if ready else 0)


class Slow:
    """Which tasks of a prefix are slow: those that would have been among the slowest of the interval before."""

    __slots__ = ("_floor", "_top")

    def __init__(self) -> None:
        self._floor: dict[str, int] = {}
        self._top: dict[str, list[int]] = {}

    def is_slow(self, prefix: str, own: int) -> bool:
        top = self._top.get(prefix)
        if top is None:
            top = self._top[prefix] = [0] * SLOWEST
        if own > top[0]:
            heappushpop(top, own)
        floor = self._floor.get(prefix)
        return floor is not None and own > floor

    def next_interval(self) -> None:
        self._floor = {prefix: top[0] for prefix, top in self._top.items()}
        self._top = {}


class Coalesced:
    """The groups of one worker, by prefix; past `most` of them in an interval, the rest is one group `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.groups: dict[str, Group] = {}

    def add(self, task: Task, own: int, computation: str) -> None:
        group = self.groups.get(task.prefix)
        if group is None:
            prefix = task.prefix if len(self.groups) < self._most else names.OTHER
            group = self.groups.get(prefix) or self.groups.setdefault(prefix, Group(task))
        group.add(task, own)
        if computation and len(group.computations) < MAX_COMPUTATIONS:
            group.computations[computation] = None
