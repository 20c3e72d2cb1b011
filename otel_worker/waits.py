"""Facts -> where a task's waiting went: timelines of keys, shares of an instant, sums. Pure arithmetic on integer ns."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from otel_worker import names
from otel_worker.facts import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_worker.facts import Fetch, Serve, SpillOp, Task

# What is being done counts before what waits in a queue behind it.
WORK, OFFLOAD_QUEUE, FETCH_QUEUE, MISSING = range(4)
WHOLE = 1 << 60  # the weight of a key that one task waits for: integers can be taken away again without a rest


# --- a fetch ------------------------------------------------------------------------------------------------------


def phases(fetch: Fetch, now: int) -> Iterator[tuple[str, int, int]]:
    """Yield (activity, start, end) of a fetch, one after the other and without gaps, from its issue to its end or `now`."""
    bounds = (
        (names.LOOP, fetch.issued),
        (names.LOOP, fetch.begun),
        (names.FETCH_CONNECT_POOL, fetch.connecting),
        (names.FETCH_CONNECT_DIAL, fetch.dialling),
        (names.FETCH_CONNECT_HANDSHAKE, fetch.handshaking),
        (names.REQUEST, fetch.sent),
        (names.DESERIALIZE_QUEUE, fetch.received if fetch.offloaded else 0),
        (names.DESERIALIZE, fetch.offloaded or fetch.received),
        (names.LOOP, fetch.deserialized),
        (names.STORE, fetch.finished),
    )
    reached = [(name, at) for name, at in bounds if at]
    reached.append(("", fetch.stored or now))
    for (name, start), (_, end) in pairwise(reached):
        if end > start:
            yield name, start, end


def split_request(fetch: Fetch, length: int) -> dict[str, int]:
    """Split `length` ns between sent and received: what the peer told, each bounded by what is left, the rest is network."""
    told = (
        (names.PEER_UNSPILL, fetch.peer_unspill),
        (names.PEER_SPILL, fetch.peer_spill),
        (names.PEER_SERIALIZE, fetch.peer_serialize),
        (names.LOOP, fetch.local_loop),
        (names.PEER_LOOP, fetch.peer_loop),
    )
    parts, rest = {}, length
    for name, ns in told:
        if ns := min(ns, rest):
            parts[name] = ns
            rest -= ns
    if rest:
        parts[names.NETWORK] = rest
    return parts


def split_store(ops: Iterable[SpillOp], start: int, length: int) -> dict[str, int]:
    """Split `length` ns of storing from `start` into spilling and the rest."""
    spilled = min(length, sum(op.total for op in ops if op.begun >= start))
    parts = {names.STORE_SPILL: spilled, names.STORE: length - spilled}
    return {name: ns for name, ns in parts.items() if ns}


def fetch_parts(fetch: Fetch, now: int) -> Iterator[Part]:
    """The timeline of one attempt."""
    for name, start, end in phases(fetch, now):
        length = end - start
        if name == names.REQUEST:
            shares = split_request(fetch, length)
        elif name == names.STORE:
            shares = split_store(fetch.spills or (), start, length)
        else:
            shares = {name: length}
        yield Part(start, end, OFFLOAD_QUEUE if name == names.DESERIALIZE_QUEUE else WORK, shares)


def fetch_sums(fetch: Fetch, now: int) -> dict[str, int]:
    """Nanoseconds by activity of one attempt; their sum is its whole length."""
    return total(part.shares for part in fetch_parts(fetch, now))


def total(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for shares in many:
        add(sums, shares)
    return sums


def add(sums: dict[str, int], parts: Mapping[str, int]) -> None:
    """Add `parts` to `sums`, activity by activity: several times a task, so the usual case pays for no look twice."""
    for name, ns in parts.items():
        if name in sums:
            sums[name] += ns
        else:
            sums[name] = ns


# --- a task's wait -------------------------------------------------------------------------------------------------


def shares(task: Task, now: int) -> dict[str, int]:
    """Split a task's wait among activities, in ns; the values sum to the wait exactly.

    At each instant the dependencies still lacking share it: those at work before those in a queue, and among equals in
    proportion to 1 / (tasks that waited for the key). What no timeline covers is `other`.
    """
    start, end = task.waiting, task.wait_ended or now
    stretches = list(_stretches(task, start, end, now))
    out: dict[str, int] = {}
    for weights, length in _instants(stretches, start, end):
        apportion(length, weights or {names.OTHER: 1}, out)
    return out


class _Stretch:
    """Keys whose timelines are one and the same for a while: `weight` of them at once, in parts of `WHOLE`."""

    __slots__ = ("end", "part", "start", "weight")

    def __init__(self, part: Part, start: int, end: int) -> None:
        self.part = part
        self.start = start
        self.end = end
        self.weight = 0


def _stretches(task: Task, start: int, end: int, now: int) -> Iterator[_Stretch]:
    """Cut timelines to the wait. Keys of one request share its parts, so they become one stretch."""
    merged: dict[tuple[int, int, int, int], _Stretch] = {}
    cache: dict[int, list[Part]] = {}
    for want in task.wants or ():
        weight = WHOLE // max(1, len(want.waiters))
        until = min(end, want.ended or end)
        before = want.waiters.get(task, {})
        pieces = [(id(want), i, _since(part, start, before)) for i, part in enumerate(want.parts)]
        for fetch in want.fetches:
            if id(fetch) not in cache:
                cache[id(fetch)] = list(fetch_parts(fetch, now))
            pieces += [(id(fetch), i, part) for i, part in enumerate(cache[id(fetch)])]
        for owner, i, part in pieces:
            begin, finish = max(part.start, start), min(part.end, until)
            if finish > begin:
                key = (owner, i, begin, finish)
                stretch = merged.get(key) or merged.setdefault(key, _Stretch(part, begin, finish))
                stretch.weight += weight
    return iter(merged.values())


def _since(part: Part, start: int, before: Mapping[str, int]) -> Part:
    """A key's stretch for a task that came in the middle of it, when it had gone to `before`."""
    if not part.start < start < part.end:
        return part
    shares = {name: ns - before.get(name, 0) for name, ns in part.shares.items() if ns > before.get(name, 0)}
    return Part(start, part.end, part.rank, shares)


def _instants(stretches: list[_Stretch], start: int, end: int) -> Iterator[tuple[Mapping[str, int], int]]:
    """Yield (weights of the activities that bear it, ns) for each interval between two changes.

    The weights are kept from change to change: a task may lack thousands of keys, and each of them is a change.
    """
    changes: dict[int, list[tuple[int, _Stretch]]] = {start: [], end: []}
    for stretch in stretches:
        changes.setdefault(stretch.start, []).append((1, stretch))
        changes.setdefault(stretch.end, []).append((-1, stretch))
    active: tuple[dict[str, int], ...] = ({}, {}, {}, {})
    for at, until in pairwise(sorted(changes)):
        for sign, stretch in changes[at]:
            _weigh(stretch, sign, active[stretch.part.rank])
        yield next((weights for weights in active if weights), {}), until - at


def _weigh(stretch: _Stretch, sign: int, weights: dict[str, int]) -> None:
    """Add what a stretch weighs to its activities, or take it away; in integers, so that nothing stays behind."""
    span = stretch.part.end - stretch.part.start
    for name, ns in stretch.part.shares.items():
        weight = weights.get(name, 0) + sign * (stretch.weight * ns // span)
        if weight:
            weights[name] = weight
        else:
            weights.pop(name, None)


def apportion(length: int, weights: Mapping[str, int], out: dict[str, int]) -> None:
    """Add `length` to `out` in proportion to `weights`, in integers whose sum is exactly `length`."""
    left, weight_left = length, sum(weights.values())
    for name, weight in weights.items():
        ns = min(left, round(left * weight / weight_left)) if weight_left > 0 else 0
        out[name] = out.get(name, 0) + ns
        left -= ns
        weight_left -= weight
    if left:
        name = max(weights, key=weights.__getitem__)
        out[name] += left


# --- an execution --------------------------------------------------------------------------------------------------


def execute_sums(task: Task, now: int) -> dict[str, int]:
    """Split the time from `executing` to the end among activities, in ns; the values sum to it exactly."""
    end = task.ended or now
    plain = task.spills is task.steps is task.rejoins is None and task.executor != "process"
    if plain and task.taken and task.run_begun and task.submitted and task.loading:
        return _plain_execution(task, end)
    begun = task.executing
    submitted = task.submitted or task.run_begun
    ops = task.spills or ()
    marks = (
        (names.LOOP, begun),
        (names.LOAD, task.loading),
        (names.RUN_QUEUE, submitted),
        (names.RUN, task.run_begun),
        (names.LOOP, task.run_ended),
        (names.STORE, task.taken),
    )
    reached = [(name, at) for name, at in marks if at]
    reached.append(("", end))
    out: dict[str, int] = {}
    for (name, start), (_, stop) in pairwise(reached):
        if stop <= start:
            continue
        add(out, _execute_part(task, ops, name, start, stop - start))
    return out


def _plain_execution(task: Task, end: int) -> dict[str, int]:
    """The usual case, without a loop: every mark is there, and nothing was spilled or read back."""
    wall = task.run_ended - task.run_begun
    cpu = min(task.run_cpu, wall)
    return {
        names.LOOP: task.loading - task.executing + task.taken - task.run_ended,
        names.LOAD: task.submitted - task.loading,
        names.RUN_QUEUE: task.run_begun - task.submitted,
        names.RUN_CPU: cpu,
        names.RUN_NONCPU: wall - cpu,
        names.STORE: end - task.taken,
    }


def _execute_part(task: Task, ops: Iterable[SpillOp], name: str, start: int, length: int) -> dict[str, int]:
    if name == names.STORE:
        return split_store(ops, start, length)
    if name == names.RUN:
        return _split_run(task, length)
    if name == names.LOAD:
        return _split_load(ops, start, length)
    return {name: length}


def _split_run(task: Task, length: int) -> dict[str, int]:
    """CPU, what it waited for in shuffles and to rejoin its pool, and the rest; a process pool tells no more than the whole."""
    if task.executor == "process":
        return {names.RUN_PROCESS: length}
    parts = {names.RUN_CPU: min(task.run_cpu, length)}
    rest = length - parts[names.RUN_CPU]
    waited = total(step.waits() for step in task.steps or ())
    for name, ns in (*waited.items(), (names.RUN_REJOIN, task.rejoining())):
        if ns := min(ns, rest):
            parts[name] = ns
            rest -= ns
    parts[names.RUN_NONCPU] = rest
    return parts


def _split_load(ops: Iterable[SpillOp], start: int, length: int) -> dict[str, int]:
    parts, rest = {}, length
    for name, reading in ((names.LOAD_UNSPILL, True), (names.LOAD_SPILL, False)):
        ns = min(rest, sum(op.total for op in ops if op.reading is reading and start <= op.begun < start + length))
        if ns:
            parts[name] = ns
            rest -= ns
    if rest:
        parts[names.LOAD] = rest
    return parts


# --- a served request ----------------------------------------------------------------------------------------------


def serve_sums(serve: Serve, now: int) -> dict[str, int]:
    """Split a `get_data` from its beginning to its reply's end (or `now`) among activities, in ns."""
    end = serve.drained or serve.written or serve.ended or now
    writing = serve.writing or end
    parts: dict[str, int] = {}
    rest = writing - serve.begun
    for name, ns in (
        (names.UNSPILL, serve.spill_time(reading=True)),
        (names.SPILL, serve.spill_time(reading=False)),
    ):
        parts[name] = min(rest, ns)
        rest -= parts[name]
    parts[names.OTHER] = rest
    if serve.writing:
        serialized = min(end, serve.serialized or serve.written or end)
        offloaded = min(serialized, serve.offloaded or writing)
        parts[names.SERIALIZE_QUEUE] = offloaded - writing
        parts[names.SERIALIZE] = serialized - offloaded
        parts[names.SEND] = end - serialized
    return {name: ns for name, ns in parts.items() if ns > 0}
