"""Intervals -> lanes: what overlaps lies beside each other, as in a waterfall."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from typing import Final

Interval = tuple[int, int]
NOT_DRAWN: Final = -1


def packed(intervals: Sequence[Interval]) -> list[int]:
    """A lane for each, as few lanes as there are; the lowest that is free is taken."""
    lanes = [0] * len(intervals)
    busy: list[tuple[int, int]] = []  # end, lane
    free: list[int] = []
    for i in sorted(range(len(intervals)), key=intervals.__getitem__):
        start, end = intervals[i]
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lanes[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (max(end, start + 1), lanes[i]))
    return lanes


def longest_packed(intervals: Sequence[Interval], most: int) -> list[int]:
    """As `packed`, in `most` lanes: the longest intervals get a place first, what finds none is NOT_DRAWN."""
    lanes = packed(intervals)
    if max(lanes, default=0) < most:
        return lanes
    lanes = [NOT_DRAWN] * len(intervals)
    taken: list[_Free] = [_Free() for _ in range(most)]
    for i in sorted(range(len(intervals)), key=lambda i: (intervals[i][0] - intervals[i][1], intervals[i])):
        for number, lane in enumerate(taken):
            if lane.take(intervals[i]):
                lanes[i] = number
                break
    return lanes


class _Free:
    """What of one lane is taken: intervals that do not overlap, in order."""

    def __init__(self) -> None:
        self._taken: list[Interval] = []

    def take(self, interval: Interval) -> bool:
        i = bisect_left(self._taken, interval)
        if i and self._taken[i - 1][1] > interval[0]:
            return False
        if i < len(self._taken) and self._taken[i][0] < max(interval[1], interval[0] + 1):
            return False
        insort(self._taken, interval)
        return True


def by_owner(intervals: Sequence[Interval], owners: Sequence[Hashable]) -> list[int]:
    """As `packed`, but each owner (a thread) keeps to the lane where it was last, where that is free."""
    lanes = [0] * len(intervals)
    ends: list[int] = []
    home: dict[Hashable, int] = {}
    for i in sorted(range(len(intervals)), key=intervals.__getitem__):
        start, end = intervals[i]
        wanted = home.get(owners[i])
        if wanted is None or ends[wanted] > start:
            mine = set(home.values()) if owners[i] is not None else set()
            free = [lane for lane, until in enumerate(ends) if until <= start]
            wanted = next((lane for lane in free if lane not in mine), free[0] if free else len(ends))
        if wanted == len(ends):
            ends.append(0)
        ends[wanted] = max(end, start + 1)
        lanes[i] = wanted
        if owners[i] is not None:
            home[owners[i]] = wanted
    return lanes
