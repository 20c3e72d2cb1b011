"""Spans -> the bars of a waterfall: a lane a thread, a wait, a fetch of each worker; each bar one activity of one span."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from otel_worker import names
from otel_worker.breakdown import Task
from otel_worker.breakdown.activities import journey
from otel_worker.breakdown.critical import Fetches, Step, critical_steps, fetches
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.overtaking import merged
from otel_worker.breakdown.timeline import Stretch, execution, serving, timeline
from otel_worker.pages.colors import kind_of
from otel_worker.pages.lanes import NOT_DRAWN, by_owner, longest_packed
from otel_worker.traces import Span, children, count, number
from otel_worker.trees import label

T = TypeVar("T")

MOST_TASKS: Final = 20_000  # drawn one by one: a browser still zooms through their bars without a wait
MOST_LANES: Final = 120
_FEW = 10  # workers that surely fit
_ROOM: Final = (
    (4, (5, 6, 3)),
    (_FEW, (3, 4, 2)),
)  # up to so many workers: lanes a worker for waits, fetches, what it serves
_LITTLE_ROOM: Final = (2, 2, 1)

WHATS: Final = ("runs", "waits", "fetch", "serves", "event loop", "others")
_RUNS, _WAIT, _FETCH, _SERVE, _LOOP, _OTHERS = range(len(WHATS))


class Lane(NamedTuple):
    worker: str
    name: str


class Part(NamedTuple):
    """Nanoseconds; the path says what was done."""

    start: int
    end: int
    path: str


@dataclass
class Strings:
    """Each text once."""

    texts: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        number_ = self._numbers.get(text)
        if number_ is None:
            number_ = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return number_


def _columns(codes: str) -> list["array[float]"]:
    return [array(code) for code in codes]


@dataclass
class Picture:
    """Columns of numbers: times in seconds since `start`, texts as their places in `strings`."""

    start: int = 0  # nanoseconds since the epoch
    end: int = 0
    lanes: list[Lane] = field(default_factory=list)
    strings: Strings = field(default_factory=Strings)
    bars: list["array[float]"] = field(default_factory=lambda: _columns("HddBII"))  # lane, start, end, kind, path, item
    items: list["array[float]"] = field(
        default_factory=lambda: _columns("BHIIIddd")
    )  # what, lane, name, key, peer, nbytes, start, end
    keys: dict[int, list[int]] = field(default_factory=dict)  # item -> all keys of a fetch of several
    left_out: list[str] = field(default_factory=list)

    def item(self, what: int, lane: int, span: Span, interval: tuple[int, int], key: str, peer: str = "") -> int:
        number_ = len(self.items[0])
        nbytes = number(span.attributes.get(names.FETCH_NBYTES) or span.attributes.get(names.TASK_NBYTES))
        start, end = (self._seconds(at) for at in interval)
        texts = (self.strings(span.name), self.strings(key), self.strings(peer))
        for column, value in zip(self.items, (what, lane, *texts, nbytes, start, end), strict=True):
            column.append(value)
        return number_

    def bar(self, lane: int, part: Part, item: int) -> None:
        values = (lane, self._seconds(part.start), self._seconds(part.end), kind_of(part.path), self.strings(part.path))
        for column, value in zip(self.bars, (*values, item), strict=True):
            column.append(value)

    def _seconds(self, at: int) -> float:
        return (at - self.start) / 1e9


def picture(tasks: Sequence[Task], ours: Ours, workers: Mapping[str, str]) -> Picture:
    """`workers` are names by address. The slowest MOST_TASKS one by one, the others as what they kept busy; `left_out` says so."""
    found = Picture()
    single = [t for t in tasks if t.count == 1]
    if not single:
        found.left_out.append("There is nothing to draw: no span stands for a single task.")
        return found
    spans = [*(t.span for t in single), *ours[names.FETCH], *ours[names.GET_DATA]]
    found.start, found.end = min(s.start for s in spans), max(s.end for s in spans)
    drawn = sorted(single, key=lambda t: -t.total)[:MOST_TASKS]
    others = sorted(single, key=lambda t: -t.total)[MOST_TASKS:]
    _say_left_out(found, single, drawn)
    _Drawing(found, drawn, others, ours).draw(workers)
    return found


def _say_left_out(found: Picture, tasks: Sequence[Task], drawn: Sequence[Task]) -> None:
    if len(drawn) < len(tasks):
        share = sum(t.total for t in drawn) / max(1, sum(t.total for t in tasks))
        found.left_out.append(
            f"{len(drawn):,} of {count(len(tasks), 'task')} are drawn one by one: the slowest, with {share:.0%} of the seconds. "
            "Of the others it is drawn when they kept a thread busy."
        )


class _Drawing:
    """Worker by worker, its lanes from what waits to what serves."""

    def __init__(self, found: Picture, drawn: Sequence[Task], others: Sequence[Task], ours: Ours) -> None:
        self.found = found
        self.below = children(ours.of(*_BELOW))
        self.held: Fetches = fetches(ours, drawn)
        self.drawn = _by_worker(drawn, lambda t: t.worker)
        self.others = _by_worker(others, lambda t: t.worker)
        worker = _worker
        self.fetched = _by_worker(ours[names.FETCH], worker)
        self.served = _by_worker(ours[names.GET_DATA], worker)
        loops = [*ours[names.LOOP_BLOCKED], *(s for s in ours[names.SPILL] if not s.parent_id)]
        self.loops = _by_worker(loops, worker)
        self.room = _LITTLE_ROOM
        self.undrawn: dict[str, int] = defaultdict(int)

    def draw(self, known: Mapping[str, str]) -> None:
        workers = sorted(
            {*self.drawn, *self.others, *self.fetched, *self.served}, key=lambda worker: known.get(worker) or worker
        )
        if len(workers) > _FEW:
            workers.sort(key=self._waited)
        self.room = next((room for most, room in _ROOM if len(workers) <= most), _LITTLE_ROOM)
        for drawn, worker in enumerate(workers):
            if len(self.found.lanes) >= MOST_LANES:
                self.found.left_out.append(
                    f"{drawn} of {count(len(workers), 'worker')} are drawn: those whose tasks waited longest for data."
                )
                break
            self._waits(worker)
            self._fetches(worker)
            self._threads(worker)
            self._serves(worker)
            self._loop(worker)
        for what, number_ in self.undrawn.items():
            self.found.left_out.append(f"{number_:,} {_UNDRAWN[what]} found no room: the longest are drawn.")

    def _waited(self, worker: str) -> tuple[int, str]:
        return -sum(t.waiting.duration for t in self.drawn.get(worker, []) if t.waiting), worker

    def _waits(self, worker: str) -> None:
        """A task's wait for data, and in the same lane the time until a thread took it."""
        waiting = [t for t in self.drawn.get(worker, []) if t.waiting is not None]
        intervals = [(t.waiting.start, (t.ready or t.waiting).end) for t in waiting if t.waiting]
        for lane, task, interval in self._placed(worker, "waits", waiting, intervals, self.room[0]):
            item = self.found.item(_WAIT, lane, task.span, interval, task.key)
            for step in critical_steps(task, self.held):
                self._step(lane, step, item)
            if task.ready is not None:
                self.found.bar(lane, Part(task.ready.start, task.ready.end, names.READY), item)

    def _step(self, lane: int, step: Step, item: int) -> None:
        """Where the fetch's own parts were; before it began, in a queue, there are sums only."""
        if step.fetch is None or step.start < step.fetch.start:
            self._split(lane, step.start, step.parts, names.WAITING, item)
            return
        for stretch in timeline(step.fetch, self.below):
            parts = stretch.within(step.start, step.end)
            self._split(lane, max(stretch.start, step.start), parts, names.WAITING, item)

    def _fetches(self, worker: str) -> None:
        mine = self.fetched.get(worker, [])
        for lane, fetch, interval in self._placed(worker, "fetches", mine, _intervals(mine), self.room[1]):
            peer = str(fetch.attributes.get(names.PEER_ADDRESS, ""))
            item = self.found.item(_FETCH, lane, fetch, interval, label(fetch), peer)
            self._remember_keys(item, fetch)
            self._stretches(lane, timeline(fetch, self.below), names.WAITING, item)

    def _threads(self, worker: str) -> None:
        """Tasks by the thread that ran them; those that are not drawn one by one as stretches of time."""
        mine = [t for t in (*self.drawn.get(worker, []), *self.others.get(worker, [])) if executed(t) is not None]
        single = len(self.drawn.get(worker, []))
        alone = {t.span.ref for t in self.drawn.get(worker, [])} if single else set()
        intervals = [executed(t) or (0, 0) for t in mine]
        lanes = by_owner(intervals, [self._thread(t) for t in mine])
        first = self._add_lanes(worker, "thread", max(lanes, default=-1) + 1)
        left: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for task, interval, lane in zip(mine, intervals, lanes, strict=True):
            if task.span.ref in alone:
                self._task(first + lane, task, interval)
            else:
                left[first + lane].append(interval)
        for lane, stretches in left.items():
            self._others(lane, stretches)

    def _task(self, lane: int, task: Task, interval: tuple[int, int]) -> None:
        item = self.found.item(_RUNS, lane, task.span, interval, task.key)
        if task.execute is not None:
            self._stretches(lane, execution(task.execute, self.below), names.EXECUTE, item)
        else:
            parts = {p.partition(".")[2]: ns for p, ns in task.parts.items() if p.startswith(f"{names.EXECUTE}.")}
            self._split(lane, interval[0], parts, names.EXECUTE, item)

    def _others(self, lane: int, intervals: Sequence[tuple[int, int]]) -> None:
        gap = (self.found.end - self.found.start) // 2_000
        for start, end in merged(intervals, gap):
            span = Span("", "", "", "tasks that are not drawn one by one", start, end)
            item = self.found.item(_OTHERS, lane, span, (start, end), "")
            self.found.bar(lane, Part(start, end, "others"), item)

    def _thread(self, task: Task) -> object:
        below = self.below.get(task.execute.ref, []) if task.execute else []
        return next((s.attributes.get(names.THREAD_ID) for s in below if s.name == names.RUN), None)

    def _serves(self, worker: str) -> None:
        mine = self.served.get(worker, [])
        for lane, served, interval in self._placed(worker, "serves", mine, _intervals(mine), self.room[2]):
            peer = str(served.attributes.get(names.PEER_ADDRESS, ""))
            item = self.found.item(_SERVE, lane, served, interval, label(served), peer)
            self._remember_keys(item, served)
            self._stretches(lane, serving(served, self.below), names.WAITING, item)

    def _loop(self, worker: str) -> None:
        mine = self.loops.get(worker, [])
        for lane, span, interval in self._placed(worker, "event loop", mine, _intervals(mine), 1):
            blocked = span.name == names.LOOP_BLOCKED
            item = self.found.item(_LOOP, lane, span, interval, _blocked(span) if blocked else label(span))
            path = f"{names.EXECUTE}.{names.LOOP}" if blocked else f"{names.EXECUTE}.{names.STORE_SPILL}"
            self.found.bar(lane, Part(span.start, span.end, path), item)

    def _placed(
        self, worker: str, name: str, things: Sequence[T], intervals: Sequence[tuple[int, int]], most: int
    ) -> Iterator[tuple[int, T, tuple[int, int]]]:
        lanes = longest_packed(intervals, most)
        first = self._add_lanes(worker, name, max(lanes, default=-1) + 1)
        for thing, interval, lane in zip(things, intervals, lanes, strict=True):
            if lane == NOT_DRAWN:
                self.undrawn[name] += 1
            else:
                yield first + lane, thing, interval

    def _add_lanes(self, worker: str, name: str, number_: int) -> int:
        first = len(self.found.lanes)
        self.found.lanes += [Lane(worker, name)] * number_
        return first

    def _stretches(self, lane: int, stretches: Iterable[Stretch], phase: str, item: int) -> None:
        for stretch in stretches:
            self._split(lane, stretch.start, stretch.within(stretch.start, stretch.end), phase, item)

    def _split(self, lane: int, at: int, parts: Mapping[str, int], phase: str, item: int) -> None:
        """One after the other, as a task meets them: of what goes on together the spans tell sums only."""
        paths = {f"{phase}.{activity}": part for activity, part in parts.items()}
        for path, part in sorted(paths.items(), key=lambda found: journey(found[0])):
            self.found.bar(lane, Part(at, at + part, path), item)
            at += part

    def _remember_keys(self, item: int, span: Span) -> None:
        keys = span.attributes.get(names.FETCH_KEYS)
        if isinstance(keys, (list, tuple)) and len(keys) > 1:
            self.found.keys[item] = [self.found.strings(str(key)) for key in keys]


_UNDRAWN: Final = {
    "waits": "waits",
    "fetches": "fetches",
    "serves": "requests served",
    "event loop": "stretches of a blocked event loop",
}
# What stands below fetches, executions and requests served.
_BELOW: Final = (
    *(names.FETCH_QUEUED, names.CONNECT, names.REQUEST, names.FETCH_DESERIALIZE),
    *(names.CONNECT_POOL, names.CONNECT_DIAL, names.CONNECT_HANDSHAKE, names.GET_DATA),
    *(names.GET_DATA_SERIALIZE, names.GET_DATA_SEND, names.UNSPILL, names.SPILL, names.RUN),
)


def executed(task: Task) -> tuple[int, int] | None:
    """When it was executing; a short one has no span of its own, only its seconds."""
    if task.execute is not None:
        return task.execute.start, task.execute.end
    length = sum(part for path, part in task.parts.items() if path.startswith(f"{names.EXECUTE}."))
    return (max(task.span.start, task.span.end - length), task.span.end) if length else None


def _blocked(span: Span) -> str:
    by, cause = (str(span.attributes.get(name) or "") for name in (names.LOOP_BLOCKED_BY, names.LOOP_CAUSE))
    return f"blocked by {by}" if by else f"blocked: {cause}"


def _worker(span: Span) -> str:
    return str(span.attributes.get(names.WORKER_ADDRESS) or span.service)


def _by_worker(things: Iterable[T], worker: Callable[[T], str]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for thing in things:
        found[worker(thing)].append(thing)
    return dict(found)


def _intervals(spans: Iterable[Span]) -> list[tuple[int, int]]:
    return [(s.start, max(s.start, s.end)) for s in spans]
