"""Spans -> Chrome's trace-event format, as Perfetto (https://ui.perfetto.dev) and chrome://tracing read it.

A process for each worker, one for each client; tracks for waits, fetches, threads, what is served, and the event loop. Spans below
a span are slices within its slice. A flow leads from what a peer served to the fetch that it arrived in.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_worker import names
from otel_worker.pages.lanes import by_owner, packed
from otel_worker.traces import Ref, Span, children
from otel_worker.trees import clean, label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# What gets a track of its own, by operation, in the order in which they are shown; the rest stands within these.
_TRACKS: Final = {
    names.COMPUTE: "computations",
    names.WAITING: "waits",
    names.READY: "ready",
    names.FETCH: "fetches",
    names.EXECUTE: "thread",
    names.GET_DATA: "serves",
    names.LOOP_BLOCKED: "event loop",
    names.TASKS: "tasks, coalesced",
}
_OTHERS: Final = "other spans"
_ORDER: Final = [*dict.fromkeys(_TRACKS.values()), _OTHERS]
_WITHIN: Final = (names.TASK,)  # drawn as its phases: it would enclose slices of several tracks


def to_perfetto(spans: Sequence[Span]) -> bytes:
    """JSON; times in microseconds since the first span, which `otherData` dates."""
    ours = [s for s in spans if s.end >= s.start]
    drawing = _Drawing(ours)
    drawing.draw()
    document = {
        "traceEvents": drawing.events,
        "displayTimeUnit": "ms",
        "otherData": {"start_unix_nano": str(drawing.start), "flows_left_out": drawing.flows_left_out},
    }
    return msgspec.json.encode(document)


@dataclass
class _Place:
    """Where a slice is, for flows to find it."""

    pid: int
    tid: int
    start: int
    end: int


@dataclass
class _Drawing:
    spans: Sequence[Span]
    events: list[dict[str, Any]] = field(default_factory=list)
    flows_left_out: int = 0  # the clocks of the two hosts say that it arrived before it was sent

    def __post_init__(self) -> None:
        self.start = min((s.start for s in self.spans), default=0)
        self.below = children(self.spans)
        self.places: dict[Ref, _Place] = {}
        self._by_ref = {s.ref: s for s in self.spans}
        self._names = {_address(s): name for s in self.spans if (name := str(s.attributes.get(names.WORKER_NAME, "")))}

    def draw(self) -> None:
        processes: dict[str, list[Span]] = defaultdict(list)
        for span in self._tops():
            processes[_address(span)].append(span)
        for pid, address in enumerate(sorted(processes, key=self._titled), start=1):
            self._process(pid, self._titled(address), processes[address])
        for flow, (sent, arrived) in enumerate(self._transfers(), start=1):
            self._flow(flow, sent, arrived)

    def _tops(self) -> Iterator[Span]:
        """What stands at the head of a track: of a track's own operation, or without a parent that draws it."""
        for span in self.spans:
            parent = self._by_ref.get(span.parent_ref)
            if _is_within(span):
                continue
            if _track(span) != _OTHERS or parent is None or _is_within(parent) or _address(parent) != _address(span):
                yield span

    def _titled(self, address: str) -> str:
        name = self._names.get(address)
        return f"{name} ({address})" if name and name != address else address

    def _process(self, pid: int, name: str, tops: Sequence[Span]) -> None:
        self._name(pid, 0, "process_name", name)
        self._sort(pid, 0, "process_sort_index", pid)
        tracks: dict[str, list[Span]] = defaultdict(list)
        for span in tops:
            tracks[_track(span)].append(span)
        tid = 0
        for track in _ORDER:
            held = tracks.get(track, [])
            lanes = self._lanes(track, held)
            for span, lane in zip(held, lanes, strict=True):
                self._slices(span, pid, tid + 1 + lane, span.start, span.end)
            for lane in range(max(lanes, default=-1) + 1):
                tid += 1
                number = f" {lane + 1}" if track == "thread" or max(lanes) else ""
                self._name(pid, tid, "thread_name", f"{track}{number}")
                self._sort(pid, tid, "thread_sort_index", tid)

    def _lanes(self, track: str, held: Sequence[Span]) -> list[int]:
        """A slice has a length of at least 1 ns, so that none touches another of its track."""
        intervals = [(s.start, max(s.end, s.start + 1)) for s in held]
        if track == "thread":
            return by_owner(intervals, [self._thread(s) for s in held])
        return packed(intervals)

    def _thread(self, execute: Span) -> object:
        run = next((s for s in self.below.get(execute.ref, []) if s.name == names.RUN), None)
        return run.attributes.get(names.THREAD_ID) if run else None

    def _slices(self, span: Span, pid: int, tid: int, start: int, end: int) -> None:
        """The span, cut to what its parent's slice leaves, and those below it that have no track of their own."""
        self.places[span.ref] = _Place(pid, tid, start, end)
        self.events.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": tid,
                "ts": self._at(start),
                "dur": (end - start) / 1e3,
                "name": self._named(span),
                "cat": span.operation,
                "args": _args(span),
            }
        )
        at = start
        for child in self.below.get(span.ref, []):
            if child.ref == span.ref or child.ref in self.places or self._has_track(child, span):
                continue
            begin, until = max(at, child.start), min(end, child.end)
            if until >= begin:
                self._slices(child, pid, tid, begin, until)
                at = max(at, until)

    def _has_track(self, child: Span, parent: Span) -> bool:
        return _is_within(child) or _track(child) != _OTHERS or _address(child) != _address(parent)

    def _named(self, span: Span) -> str:
        """Phases say whose they are: the key is on their task."""
        task = self._by_ref.get(span.parent_ref) if span.name in (names.WAITING, names.READY, names.EXECUTE) else None
        key = label(task or span)
        return clean(f"{span.name}: {key}" if key else span.name)

    def _transfers(self) -> Iterator[tuple[_Place, _Place]]:
        for served in self.spans:
            request = self._by_ref.get(served.parent_ref) if served.name == names.GET_DATA else None
            sent = self.places.get(served.ref)
            arrived = self.places.get(request.parent_ref) if request is not None else None
            if sent is not None and arrived is not None and request is not None:
                until = min(max(request.end, arrived.start), arrived.end)
                if until < sent.start:
                    self.flows_left_out += 1
                else:
                    yield sent, _Place(arrived.pid, arrived.tid, until, until)

    def _flow(self, flow: int, sent: _Place, arrived: _Place) -> None:
        shared = {"id": flow, "name": "transfer", "cat": "transfer"}
        self.events.append({"ph": "s", "pid": sent.pid, "tid": sent.tid, "ts": self._at(sent.start), **shared})
        end = {"ph": "f", "bp": "e", "pid": arrived.pid, "tid": arrived.tid, "ts": self._at(arrived.start), **shared}
        self.events.append(end)

    def _at(self, nanoseconds: int) -> float:
        return (nanoseconds - self.start) / 1e3

    def _name(self, pid: int, tid: int, what: str, name: str) -> None:
        self.events.append({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": {"name": clean(name)}})

    def _sort(self, pid: int, tid: int, what: str, index: int) -> None:
        self.events.append({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": {"sort_index": index}})


def _is_within(span: Span) -> bool:
    return span.scope == names.SCOPE and span.operation in _WITHIN


def _track(span: Span) -> str:
    return _TRACKS.get(span.operation, _OTHERS) if span.scope == names.SCOPE else _OTHERS


def _address(span: Span) -> str:
    """Whose it is: a worker's address; else its service."""
    return str(span.attributes.get(names.WORKER_ADDRESS) or span.service)


def _args(span: Span) -> Mapping[str, Any]:
    """Attributes as plain JSON."""
    found = {
        clean(name): value if isinstance(value, (bool, int, float)) else clean(_text(value))
        for name, value in _told(span)
    }
    found["span_id"] = span.span_id
    found["trace_id"] = span.trace_id
    return found


def _told(span: Span) -> Iterable[tuple[str, Any]]:
    return ((name, value) for name, value in span.attributes.items() if value is not None)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
