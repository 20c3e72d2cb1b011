"""Where the waiting of dependents went, by reason: at each instant, the keys still lacking share that instant.

What is being done counts before what waits in a queue, and that before what has no holder; among equals, equal shares.
So the reasons of a dependent add up to its wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from otel_worker import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_worker.lab.facts import Dependent, Request, Span, WorkerFacts

CONNECT = names.FETCH_CONNECT_DIAL
PEER = names.PEER_LOOP
NETWORK = names.NETWORK
RECEIVE = names.LOOP
IN_FLIGHT = names.QUEUED_IN_FLIGHT
BUSY = names.QUEUED_BUSY
MISSING = names.MISSING
OTHER = names.OTHER
#: why a key that somebody could be asked for was not asked for
HELD_BACK = (names.QUEUED_PAUSED, names.QUEUED_BYTES, names.QUEUED_COUNT, names.QUEUED_HEAD_OF_LINE)
DOING = (CONNECT, PEER, NETWORK, RECEIVE)
REASONS = (*HELD_BACK, IN_FLIGHT, BUSY, *DOING, MISSING, OTHER)


class Waits:
    """The timelines of one worker, and from them the waiting of each of its dependents by reason."""

    def __init__(self, facts: WorkerFacts) -> None:
        self.facts = facts
        self.flights: dict[str, list[tuple[float, float]]] = {}
        for request in facts.requests:
            if request.finished is not None:
                self.flights.setdefault(request.peer, []).append((request.issued, request.finished))
        self.clock = Clock(facts.held_back)
        self.blocked: dict[tuple[str, ...], list[tuple[float, str | None]]] = {}

    def of(self, dependent: Dependent) -> dict[str, float]:
        """Seconds by reason, from `waiting` to `ready`."""
        parts: dict[str, float] = dict.fromkeys(REASONS, 0.0)
        if dependent.ready is None:
            return parts
        start, stop = dependent.waiting, dependent.ready
        changes = sorted(self._changes(dependent.needs, start, stop), key=lambda change: change[0])
        active: Counter[str | None] = Counter()
        at = start
        position = 0
        while at < stop:
            while position < len(changes) and changes[position][0] <= at:
                active[changes[position][1]] += changes[position][2]
                position += 1
            until = min(stop, changes[position][0]) if position < len(changes) else stop
            self._share(parts, active, at, until)
            at = until
        return parts

    def _share(self, parts: dict[str, float], active: Counter[str | None], start: float, stop: float) -> None:
        """Gives an instant to whom it belongs. None in `active`: keys held back by the worker's own limits."""
        doing: dict[str | None, int] = {reason: active[reason] for reason in DOING if active[reason]}
        queued = {reason: active[reason] for reason in (IN_FLIGHT, BUSY, None) if active[reason]}
        missing: dict[str | None, int] = {MISSING: active[MISSING]} if active[MISSING] else {}
        shares: dict[str | None, int] = doing or queued or missing or {OTHER: 1}
        total = sum(shares.values())
        for reason, count in shares.items():
            seconds = (stop - start) * count / total
            if reason is not None:
                parts[reason] += seconds
            else:
                for held_back, part in self.clock.between(start, stop).items():
                    parts[held_back] += part * count / total

    def _changes(self, needs: tuple[object, ...], start: float, stop: float) -> Iterator[tuple[float, str | None, int]]:
        for key in needs:
            for span in self.facts.spans.get(key, ()):
                if span.stop is None or (span.stop > start and span.start < stop):
                    for begin, end, reason in self._pieces(span, stop):
                        yield begin, reason, 1
                        yield end, reason, -1

    def _pieces(self, span: Span, stop: float) -> Iterator[tuple[float, float, str | None]]:
        end = stop if span.stop is None else span.stop
        if span.state == "missing":
            yield span.start, end, MISSING
        elif span.state == "flight":
            yield from phases(span.request, span.start, end) if span.request else [(span.start, end, CONNECT)]
        else:
            toggles = self._blocked(span.holders)
            first = max(0, bisect_right(toggles, span.start, key=lambda toggle: toggle[0]) - 1)
            last = bisect_left(toggles, end, key=lambda toggle: toggle[0])
            for (begin, reason), following in pairwise([*toggles[first:last], (end, None)]):
                yield max(begin, span.start), min(following[0], end), reason

    def _blocked(self, holders: tuple[str, ...]) -> list[tuple[float, str | None]]:
        """(since, reason) why none of these holders may be asked; None: one may."""
        if holders not in self.blocked:
            changes = []
            for holder in holders:
                for reason, intervals in ((IN_FLIGHT, self.flights), (BUSY, self.facts.busy)):
                    for start, stop in intervals.get(holder, ()):
                        changes += [(start, 1, holder, reason), (stop, 0, holder, reason)]
            self.blocked[holders] = list(toggles(changes, len(holders)))
        return self.blocked[holders]


def toggles(changes: list[tuple[float, int, str, str]], holders: int) -> Iterator[tuple[float, str | None]]:
    state: dict[str, str] = {}
    yield 0.0, None
    for at, begins, holder, reason in sorted(changes):
        if begins:
            state[holder] = reason
        elif state.get(holder) == reason:
            del state[holder]
        blocked = len(state) == holders
        yield at, (IN_FLIGHT if IN_FLIGHT in state.values() else BUSY) if blocked else None


def phases(request: Request, start: float, stop: float) -> list[tuple[float, float, str | None]]:
    """A key's flight in its parts."""
    marks: list[tuple[float | None, str | None]] = [
        (request.connected, CONNECT),
        (request.served, PEER),
        (request.received, NETWORK),
        (stop, RECEIVE),
    ]
    parts: list[tuple[float, float, str | None]] = []
    for mark, reason in marks:
        end = min(stop, mark) if mark is not None else stop
        if end > start:
            parts.append((start, end, reason))
            start = end
    return parts


class Clock:
    """How long each local reason held between two times."""

    def __init__(self, held_back: list[tuple[float, str]]) -> None:
        self.since = [0.0, *(since for since, _ in held_back)]
        self.reason = [HELD_BACK[-1], *(reason for _, reason in held_back)]
        self.sums = [dict.fromkeys(HELD_BACK, 0.0)]
        for (start, stop), reason in zip(pairwise(self.since), self.reason, strict=False):
            self.sums.append({**self.sums[-1], reason: self.sums[-1][reason] + stop - start})

    def at(self, when: float) -> dict[str, float]:
        index = bisect_right(self.since, when) - 1
        reading = dict(self.sums[index])
        reading[self.reason[index]] += when - self.since[index]
        return reading

    def between(self, start: float, stop: float) -> dict[str, float]:
        before, after = self.at(start), self.at(stop)
        return {reason: after[reason] - before[reason] for reason in HELD_BACK if after[reason] > before[reason]}
