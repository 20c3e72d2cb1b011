"""What is open right now on one worker, read from the recorder's records: nothing is kept for it, nothing is changed."""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from otel_worker import names, waits
from otel_worker.reasons import BYTES, COUNT, PAUSED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_worker.facts import Fetch, Key, Serve, Task, Want
    from otel_worker.recorder import Recorder

MAX_WANTS = 1000  # keys of one task that are looked at to say what it waits for
MAX_TALLY, MAX_TALLY_WANTS = 200, 20  # waiting tasks, and keys of each, where all tasks are counted
_REASONS = {PAUSED: names.QUEUED_PAUSED, COUNT: names.QUEUED_COUNT, BYTES: names.QUEUED_BYTES}


class Phase(NamedTuple):
    """What goes on with something that is open: since when (ns), and with which peer."""

    name: str
    since: int
    peer: str = ""
    rank: int = waits.WORK  # as in a task's wait: work counts before what queues behind it


class Opening(NamedTuple):
    """A task, a request of ours, a key that is not requested yet, or a request that is served; times in ns."""

    kind: str  # task | fetch | key | get_data
    key: Key
    keys: int  # how many of them, for a request
    state: str  # Dask's name of it; get_data for a request that is served
    since: int
    record: Task | Fetch | Want | Serve


def openings(recorder: Recorder) -> Iterator[Opening]:
    """Yield all that is open, in no order."""
    for task in recorder.tasks.values():
        yield _task(task)
    for fetch in recorder.fetches.values():
        yield Opening("fetch", next(iter(fetch.keys), ""), len(fetch.keys), "flight", fetch.issued, fetch)
    for want in recorder.wants.values():
        if want.queued:
            yield Opening("key", want.key, 1, want.state, want.wished or want.queued, want)
    for serve in recorder.serves:
        yield Opening("get_data", next(iter(serve.keys), ""), len(serve.keys), names.GET_DATA, serve.begun, serve)


def longest(recorder: Recorder, now: int, most: int) -> tuple[list[tuple[Opening, Phase]], int]:
    """The `most` that are open for longest, the longest first, each with its phase; and how many there are in all."""
    found = list(openings(recorder))
    top = nlargest(most, found, key=lambda opening: now - opening.since)
    return [(opening, phase(recorder, opening, now)) for opening in top], len(found)


def tally(recorder: Recorder, now: int) -> dict[tuple[str, str], float]:
    """How many tasks are now in each (wait | ready | execute, phase). Of many that wait, the first `MAX_TALLY` stand for all."""
    found: dict[tuple[str, str], float] = {}
    waiting = []
    for task in recorder.tasks.values():
        if task.executing:
            key = "execute", _execute_phase(task).name
        elif task.ready:
            key = "ready", _ready_reason(recorder, task)
        else:
            waiting.append(task)
            continue
        found[key] = found.get(key, 0) + 1
    seen = waiting[:MAX_TALLY]
    for task in seen:
        key = "wait", _wait_phase(recorder, task, now, MAX_TALLY_WANTS).name
        found[key] = found.get(key, 0) + len(waiting) / len(seen)
    return found


def phase(recorder: Recorder, opening: Opening, now: int) -> Phase:
    """What goes on with it now."""
    record = opening.record
    if opening.kind == "task":
        return task_phase(recorder, record, now)  # type: ignore[arg-type]  # its kind says so
    if opening.kind == "fetch":
        return _fetch_phase(record, now)  # type: ignore[arg-type]
    if opening.kind == "key":
        return _queued_phase(recorder, record)  # type: ignore[arg-type]
    return _serve_phase(record)  # type: ignore[arg-type]


# --- tasks ---------------------------------------------------------------------------------------------------------


def _task(task: Task) -> Opening:
    if task.cancelled:
        state, since = "cancelled", task.executing or task.arrived
    elif task.executing:
        state, since = ("long-running", task.seceded) if task.seceded else ("executing", task.executing)
    elif task.ready:
        state, since = "constrained" if task.resources else "ready", task.ready
    else:
        state, since = "waiting", task.waiting or task.arrived
    return Opening("task", task.key, 1, state, since, task)


def task_phase(recorder: Recorder, task: Task, now: int) -> Phase:
    """What a task does, or what it waits for."""
    if task.executing:
        return _execute_phase(task)
    if task.ready:
        return Phase(_ready_reason(recorder, task), task.ready)
    return _wait_phase(recorder, task, now)


def _execute_phase(task: Task) -> Phase:
    marks = (
        (names.STORE, task.taken),
        (names.LOOP, task.run_ended),
        (names.RUN, task.run_begun),
        (names.RUN_QUEUE, task.submitted),
        (names.LOAD, task.loading),
    )
    return next((Phase(name, at) for name, at in marks if at), Phase(names.LOOP, task.executing))


def _ready_reason(recorder: Recorder, task: Task) -> str:
    state = recorder.state
    if not state.running:
        return names.READY_PAUSED
    if task.resources and len(state.executing) < state.nthreads:
        return names.READY_RESOURCES
    return names.READY_THREAD_SLOT


def _wait_phase(recorder: Recorder, task: Task, now: int, most: int = MAX_WANTS) -> Phase:
    """Of the keys that it lacks, what is being done counts before what waits in a queue; then what takes longest."""
    lacking = islice((want for want in task.wants or () if not want.ended), most)
    phases = [_want_phase(recorder, want, now) for want in lacking]
    return min(phases, key=lambda p: (p.rank, p.since), default=Phase(names.OTHER, task.waiting or task.arrived))


# --- keys and requests -----------------------------------------------------------------------------------------------


def _want_phase(recorder: Recorder, want: Want, now: int) -> Phase:
    if want.queued:
        return _queued_phase(recorder, want)
    if want.fetches and not want.fetches[-1].stored:
        return _fetch_phase(want.fetches[-1], now)
    return Phase(names.LOOP, want.flight)


def _queued_phase(recorder: Recorder, want: Want) -> Phase:
    if want.state == "missing":
        return Phase(names.MISSING, want.queued, rank=waits.MISSING)
    state, since = recorder.state, want.wished or want.queued
    peer = want.holders[0] if want.holders else ""
    reason = _REASONS.get(recorder.clocks.reason)
    if reason is None:
        busy = next((holder for holder in want.holders if holder in state.busy_workers), None)
        asked = next((holder for holder in want.holders if holder in state.in_flight_workers), None)
        peer = busy or asked or peer
        reason = names.QUEUED_BUSY if busy else names.QUEUED_IN_FLIGHT if asked else names.QUEUED_HEAD_OF_LINE
    return Phase(reason, since, peer, waits.FETCH_QUEUE)


def _fetch_phase(fetch: Fetch, now: int) -> Phase:
    name, since, _ = [(names.LOOP, fetch.issued, now), *waits.phases(fetch, now)][-1]  # the last one is open
    rank = waits.OFFLOAD_QUEUE if name == names.DESERIALIZE_QUEUE else waits.WORK
    return Phase(name, since, fetch.peer, rank)


def _serve_phase(serve: Serve) -> Phase:
    marks = (
        (names.ACK, serve.drained or serve.written),
        (names.SEND, serve.serialized),
        (names.SERIALIZE, serve.writing),
    )
    name, since = next(((name, at) for name, at in marks if at), (names.UNSPILL, serve.begun))
    return Phase(name, since, serve.peer or serve.peer_kind)
