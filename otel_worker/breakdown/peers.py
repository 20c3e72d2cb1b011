"""Whom tasks waited for, and why that peer was slow: its seconds by activity, and what its own spans say of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from otel_worker import names
from otel_worker.breakdown.apportion import add
from otel_worker.breakdown.critical import Fetches, Step, critical_steps, fetches
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.tasks import Task
from otel_worker.traces import Ref, Span, number
from otel_worker.trees import label


class Evidence(Struct, frozen=True):
    """What explains an activity at a peer best: seconds of one part of it, and its worst example."""

    what: str  # "unpickling", "reading"; or the cause of a blocked event loop
    seconds: float  # of all that the peer did of it
    key: str = ""
    longest: float = 0.0  # seconds of that key
    worker: str = ""  # where it happened, if not at the peer


class Peer(Struct, frozen=True):
    """`seconds` is what tasks waited for it, by method critical_path, so that those of all peers add up."""

    address: str
    seconds: float
    tasks: int
    fetches: int
    busy: int  # fetches that it answered with "busy"
    nbytes: int
    parts: dict[str, float]  # seconds by activity
    evidence: dict[str, Evidence]  # by activity


@dataclass
class _Sums:
    parts: dict[str, int] = field(default_factory=dict)
    tasks: set[Ref] = field(default_factory=set)


def peers(tasks: Sequence[Task], ours: Ours) -> list[Peer]:
    """Every peer that something was fetched from, the longest waited for first."""
    sums: dict[str, _Sums] = defaultdict(_Sums)
    waited = [t for t in tasks if t.waiting is not None]
    held = fetches(ours, waited)
    for task, step in _steps(waited, held):
        mine = sums[_peer(step.fetch)]
        add(mine.parts, step.parts)
        mine.tasks.add(task.span.ref)
    by_peer: dict[str, list[Span]] = defaultdict(list)
    for fetch in ours[names.FETCH]:
        by_peer[_peer(fetch)].append(fetch)
    evidence = _Evidence(ours)
    found = [_told(address, sums[address], fetched, evidence) for address, fetched in by_peer.items() if address]
    return sorted(found, key=lambda p: (-p.seconds, p.address))


def _steps(tasks: Iterable[Task], held: Fetches) -> Iterator[tuple[Task, Step]]:
    for task in tasks:
        for step in critical_steps(task, held):
            if step.fetch is not None:
                yield task, step


def _peer(span: Span | None) -> str:
    return str(span.attributes.get(names.PEER_ADDRESS, "")) if span else ""


def _told(address: str, sums: _Sums, fetched: Sequence[Span], evidence: "_Evidence") -> Peer:
    return Peer(
        address,
        sum(sums.parts.values()) / 1e9,
        len(sums.tasks),
        len(fetched),
        sum(f.attributes.get(names.OUTCOME) == "busy" for f in fetched),
        sum(int(number(f.attributes.get(names.FETCH_NBYTES))) for f in fetched),
        {activity: part / 1e9 for activity, part in sorted(sums.parts.items(), key=lambda item: -item[1])},
        evidence.of(address, fetched),
    )


class _Evidence:
    """Spans on the peers themselves, looked up once."""

    def __init__(self, ours: Ours) -> None:
        served = {s.ref for s in ours[names.GET_DATA]}
        self._unspilled = {s.ref: s for s in ours[names.UNSPILL] if s.parent_ref in served}
        self._reads = _by_worker(s for s in ours[names.UNSPILL_READ] if s.parent_ref in self._unspilled)
        self._unpickles = _by_worker(s for s in ours[names.UNSPILL_DESERIALIZE] if s.parent_ref in self._unspilled)
        self._blocked = _by_worker(ours[names.LOOP_BLOCKED])
        self._received: dict[Ref, Span] = {s.parent_ref: s for s in ours[names.FETCH_DESERIALIZE]}

    def of(self, address: str, fetched: Sequence[Span]) -> dict[str, Evidence]:
        found = {
            names.PEER_UNSPILL: self._disk(address),
            names.PEER_LOOP: self._loop(address),
            names.DESERIALIZE: self._deserialized(fetched),
        }
        return {activity: told for activity, told in found.items() if told is not None}

    def _disk(self, address: str) -> Evidence | None:
        """Of reading the bytes and unpickling them, what took longer."""
        kinds = {"unpickling": self._unpickles.get(address, []), "reading": self._reads.get(address, [])}
        what = max(kinds, key=lambda kind: _seconds(kinds[kind]))
        if not kinds[what]:
            return None
        worst = max(kinds[what], key=lambda s: s.duration)
        key = str(self._unspilled[worst.parent_ref].attributes.get(names.SPILL_KEY, ""))
        return Evidence(what, _seconds(kinds[what]), key, worst.duration / 1e9)

    def _loop(self, address: str) -> Evidence | None:
        blocked = self._blocked.get(address, [])
        if not blocked:
            return None
        worst = max(blocked, key=lambda s: s.duration)
        cause, key = (str(worst.attributes.get(name, "")) for name in (names.LOOP_CAUSE, names.LOOP_BLOCKED_BY))
        return Evidence(cause, _seconds(blocked), key, worst.duration / 1e9)

    def _deserialized(self, fetched: Sequence[Span]) -> Evidence | None:
        received = [(self._received[f.ref], f) for f in fetched if f.ref in self._received]
        if not received:
            return None
        worst, fetch = max(received, key=lambda pair: pair[0].duration)
        worker = str(fetch.attributes.get(names.WORKER_ADDRESS, ""))
        return Evidence("unpickling", _seconds(s for s, _ in received), label(fetch), worst.duration / 1e9, worker)


def _by_worker(spans: Iterable[Span]) -> Mapping[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        found[str(span.attributes.get(names.WORKER_ADDRESS) or span.service)].append(span)
    return found


def _seconds(spans: Iterable[Span]) -> float:
    return sum(s.duration for s in spans) / 1e9
