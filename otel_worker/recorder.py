"""The recorder of one worker: it turns what the hooks see into facts and hands the finished ones to observers.

Every method takes the time as an argument. It keeps a record for a task while it is to be computed here, and for a key
while it is wanted from a peer; nothing stays when they are gone.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from otel_worker import names, waits
from otel_worker.facts import Blocked, Clock, Failure, Fetch, Gather, Key, Part, Serve, SpillOp, Task, Want
from otel_worker.reasons import Clocks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from otel_worker.facts import Cause, Observer, StateView, TaskView

WANTED = frozenset(("fetch", "flight", "missing"))
COMPUTING = frozenset(("waiting", "ready", "constrained", "executing", "long-running"))
UNTOLD = frozenset(("released", "forgotten"))
MAX_CELLS = 1000  # prefixes times states that are told apart
MAX_PEERS = 100  # peers that are looked at to say which were skipped
WORK = 16  # pieces of work on the event loop that are remembered, to find what blocked it
TELL_BLOCKED = 100_000_000  # ns from which a blocked event loop is a fact of its own
LIMBO = frozenset(("cancelled", "resumed"))  # left, but its thread or its request still runs


class Recorder:
    """What happens on one worker, timed."""

    __slots__ = (
        "address",
        "arrival",
        "blocked",
        "clock",
        "clocks",
        "fetches",
        "gathers",
        "last",
        "loop_blocked",
        "name",
        "observers",
        "runs",
        "serves",
        "state",
        "states",
        "tasks",
        "tick_interval",
        "ticked",
        "wants",
        "work",
    )

    def __init__(self, state: StateView, clock: Clock, now: int, *, tick_interval: int = 20_000_000) -> None:
        self.state = state
        self.clock = clock
        self.clocks = Clocks(now)
        self.observers: list[Observer] = []
        self.address = ""
        self.name = ""
        self.tasks: dict[Key, Task] = {}
        self.wants: dict[Key, Want] = {}
        self.fetches: dict[str, Fetch] = {}
        self.serves: set[Serve] = set()
        self.gathers: set[Gather] = set()
        # (prefix, state) -> tasks in it, sum of the times of entering minus leaving, tasks that entered
        self.states: dict[tuple[str, str], list[int]] = {}
        self.last = now  # when the last transitions were over
        self.arrival = 0
        self.blocked: Blocked | None = None  # the last stretch that was long enough to tell
        self.work: deque[tuple[int, int, str, Key | None]] = deque(maxlen=WORK)  # long work on the loop, newest last
        self.runs: deque[tuple[int, int, str, Key | None]] = deque(maxlen=WORK)  # functions that ran for long
        self.tick_interval = tick_interval
        self.ticked = now
        self.loop_blocked = (now, 0)  # end and length of the last stretch without a tick

    # --- transitions -----------------------------------------------------------------------------------------------

    def moved(self, moves: Mapping[TaskView, str], now: int) -> None:
        """Tasks went from the states in `moves` to those they have now. Keys first: tasks depend on them."""
        self.last = now
        self.clocks.advance(self.state, now)
        if not moves:
            return
        states = self.states
        computing: list[tuple[TaskView, Task | None, str]] = []
        wants, tasks = self.wants, self.tasks
        for view, before in moves.items():
            after = view.state
            if after != before:
                self._count(states, view.prefix, before, after, now)
            key = view.key
            if before in WANTED or after in WANTED or key in wants:
                self._key_moved(view, after, now)
            task = tasks.get(key)
            if task is not None or after in COMPUTING:
                computing.append((view, task, after))
            elif before == "memory" and after != "memory":
                for observer in self.observers:
                    observer.key_released(key)
        for view, task, after in computing:
            self._task_moved(view, task, after, now)

    def found(self, views: Iterable[TaskView], now: int) -> None:
        """Tasks that were here before the recorder: their time counts from now on."""
        for view in views:
            self._count(self.states, view.prefix, "released", view.state, now)

    @staticmethod
    def _count(states: dict[tuple[str, str], list[int]], prefix: str, before: str, after: str, now: int) -> None:
        """Keep, for each state, how many tasks are in it and the sum of the times of entering minus leaving.

        So the time spent in a state up to t is `n * t - sum`, at O(1) a transition. `released` is not told: Dask keeps
        tasks there only for an instant, and a new task's first state is not one that it entered. Past `MAX_CELLS`, a
        prefix that is new counts as `other`, for good.
        """
        if before not in UNTOLD:
            cell = states.get((prefix, before)) or states.get((names.OTHER, before))
            if cell is not None:
                cell[0] -= 1
                cell[1] -= now
        if after not in UNTOLD:
            cell = states.get((prefix, after))
            if cell is None:
                key = (prefix if len(states) < MAX_CELLS else names.OTHER), after
                cell = states.get(key) or states.setdefault(key, [0, 0, 0])
            cell[1] += now  # before the count: who reads in another thread meanwhile sees too little, never too much
            cell[0] += 1
            cell[2] += 1

    # --- keys ------------------------------------------------------------------------------------------------------

    def _key_moved(self, view: TaskView, after: str, now: int) -> None:
        want = self.wants.get(view.key)
        if after not in WANTED:
            if want is not None and not (after in LIMBO and want.fetches):
                self._want_ended(want, now)
            return
        if want is None:
            want = self._wanted(view, now)
        else:
            self._close_stretch(want)
        before, want.state = want.state, after
        if after == "flight":
            want.queued = 0
            if before != "flight" or (want.fetches and want.fetches[-1].finished >= want.flight):
                want.flight = now  # else: it was recommended again and stayed where it was
            fetch = self.fetches.get(view.coming_from or "")
            if fetch is not None and view.key in fetch.keys and fetch not in want.fetches:
                want.fetches.append(fetch)  # resumed: its request never stopped
                fetch.wants.append(want)
                fetch.wished.append(want.wished)
        else:
            if before == "flight":
                want.wished = now
            self._open_stretch(want, tuple(view.who_has))

    def _wanted(self, view: TaskView, now: int) -> Want:
        want = self.wants[view.key] = Want(view.key, now)
        for waiter in view.waiters:
            task = self.tasks.get(waiter.key)
            if task is not None and task.waiting and not task.wait_ended:
                self._joins(task, want)
        return want

    def _want_ended(self, want: Want, now: int) -> None:
        self._close_stretch(want)
        want.queued = 0
        want.ended = now
        del self.wants[want.key]
        self._forget_peers()

    def _forget_peers(self) -> None:
        """Nobody holds readings when no key is wanted: a peer that is neither asked nor busy needs no clocks then."""
        if not self.wants:
            self.clocks.forget_idle_peers()

    def _open_stretch(self, want: Want, holders: tuple[str, ...]) -> None:
        want.queued = self.last
        want.holders = holders
        want.marks = self.clocks.read(holders)

    def _close_stretch(self, want: Want) -> None:
        """End the stretch in `fetch` or `missing` that is open, if one is."""
        if shares := self._stretch(want):
            rank = waits.MISSING if want.state == "missing" else waits.FETCH_QUEUE
            want.parts.append(Part(want.queued, self.last, rank, shares))

    def _stretch(self, want: Want) -> dict[str, int]:
        """What the stretch that is open went to so far, in ns."""
        if not want.queued or want.queued == self.last:
            return {}
        if want.state == "missing":
            return {names.MISSING: self.last - want.queued}
        return self.clocks.split(want.marks)

    def holders_changed(self, keys: Collection[Key], tasks: Mapping[Key, TaskView], now: int) -> None:
        """Take a new reading for those of `keys` that are in `fetch` and the holders of which are others now."""
        advanced = False
        for key in keys:
            want = self.wants.get(key)
            if want is None or not want.queued or want.state != "fetch":
                continue
            holders = tuple(tasks[key].who_has)
            if set(holders) != set(want.holders):
                if not advanced:
                    self._advance(now)
                    advanced = True
                self._close_stretch(want)
                self._open_stretch(want, holders)

    def _advance(self, now: int) -> None:
        self.last = now
        self.clocks.advance(self.state, now)

    def _joins(self, task: Task, want: Want) -> None:
        """`task` waits for `want` from now on. Of a stretch that is open, what went before is not its own."""
        if want.joined[0] != want.queued or want.joined[1] != self.last:  # else: tasks of one batch share it
            want.joined = (want.queued, self.last, self._stretch(want))
        want.waiters[task] = want.joined[2]
        if task.wants is None:
            task.wants = []
        task.wants.append(want)

    # --- tasks -----------------------------------------------------------------------------------------------------

    def _task_moved(self, view: TaskView, task: Task | None, after: str, now: int) -> None:
        if task is None:
            task = self.tasks[view.key] = Task(view, self, now)
            task.dependencies = len(view.dependencies)
        if after == "waiting":
            self._waits(task, view, now)
        elif after in ("ready", "constrained"):
            self._leaves_waiting(task, now)
            if not task.ready:
                task.ready = now
                task.resources = after == "constrained"
                task.ready_marks = self.clocks.ready_marks()
        elif after == "executing":
            self._leaves_waiting(task, now)
            self._starts(task, now)
        elif after == "long-running":
            task.seceded = task.seceded or now
        elif after in LIMBO and task.executing and not task.taken:
            task.cancelled = True  # its thread runs on; the record ends with it
        else:
            self.task_ended(task, self._outcome(task, after), now, view)

    def _waits(self, task: Task, view: TaskView, now: int) -> None:
        if task.waiting and not task.wait_ended:
            return
        task.waiting = now
        task.wait_ended = 0
        for dep in view.waiting_for_data:
            want = self.wants.get(dep.key)
            if want is not None:
                self._joins(task, want)

    def _leaves_waiting(self, task: Task, now: int) -> None:
        if not task.waiting or task.wait_ended:
            return
        task.wait_ended = now
        task.wait_parts = waits.shares(task, now)
        if task.wait_parts.get(names.LOOP, 0) >= TELL_BLOCKED:
            task.blocked_by = self._blocked_by(task.waiting, now)
        if task.wants:
            seen: dict[Fetch, None] = {}
            for want in task.wants:
                if not want.ended:
                    want.waiters.pop(task, None)  # cancelled; who got the key keeps counting for the others' shares
                seen.update(dict.fromkeys(f for f in want.fetches if not f.stored or f.stored >= task.waiting))
            task.fetches = list(seen)
        task.wants = None

    def _blocked_by(self, begun: int, now: int) -> Key | None:
        """The key to blame for a loop that was blocked since `begun`; its tick may not have come yet."""
        late = now - self.ticked - self.tick_interval
        if late >= TELL_BLOCKED:
            return self._blame(now - late, now)[1]
        return self.blocked.key if self.blocked is not None and self.blocked.ended > begun else None

    def _starts(self, task: Task, now: int) -> None:
        task.executing = task.executing or now
        if task.ready_marks is not None:
            task.ready_parts = self.clocks.ready_parts(task.ready_marks, resources=task.resources)
            task.ready_marks = None

    def _outcome(self, task: Task, after: str) -> str:
        if after in ("memory", "error"):
            return after
        if task.rescheduled:
            return "rescheduled"
        if task.cancelled or after in LIMBO:
            return "cancelled"
        log = self.state.stimulus_log
        return "stolen" if log and type(log[-1]).__name__ == "StealRequestEvent" else "released"

    def task_ended(self, task: Task, outcome: str, now: int, view: TaskView | None = None) -> None:
        self._leaves_waiting(task, now)
        if task.ready_marks is not None:
            task.ready_parts = self.clocks.ready_parts(task.ready_marks, resources=task.resources)
            task.ready_marks = None
        task.ended = now
        task.outcome = outcome
        if task.steps is not None:
            for step in task.steps:
                step.ended = step.ended or now  # observing ends, or the task was given up: its thread goes on
        if task.executing:
            task.execute_parts = waits.execute_sums(task, now)
        if view is not None:
            task.nbytes = view.nbytes or 0
        self.tasks.pop(task.key, None)
        if task.run_ended - task.run_begun >= self.tick_interval and task.executor != "process":
            self.runs.append((task.run_begun, task.run_ended, task.executor, task.key))
        for observer in self.observers:
            observer.task_ended(task)

    # --- execution -------------------------------------------------------------------------------------------------

    def execute_began(self, key: Key, now: int) -> Task | None:
        task = self.tasks.get(key)
        if task is not None:
            task.loading = now
        return task

    def execute_taken(self, task: Task, now: int, *, failure: Failure | None, rescheduled: bool) -> None:
        """The event loop takes the result; storing it comes next."""
        task.taken = now
        task.failure = failure
        task.rescheduled = rescheduled

    # --- fetches ---------------------------------------------------------------------------------------------------

    def fetch_began(self, peer: str, keys: Collection[Key], nbytes: int, now: int) -> Fetch:
        wants = [self.wants[key] for key in keys if key in self.wants]
        issued = max((want.flight for want in wants), default=0) or now
        fetch = self.fetches[peer] = Fetch(peer, keys, nbytes, self, issued, now)
        fetch.wants = wants
        fetch.wished = [want.wished for want in wants]
        for want in wants:
            want.fetches.append(fetch)
        self._note_choice(fetch)
        self.clocks.flight_began(peer)
        return fetch

    def _note_choice(self, fetch: Fetch) -> None:
        """What ended the bundle, and which peers with wanted keys were skipped."""
        state = self.state
        fetch.left_over = bool(state.data_needed.get(fetch.peer))
        needed = list(islice(state.data_needed, MAX_PEERS))
        fetch.peers_busy = sum(peer in state.busy_workers for peer in needed)
        fetch.peers_in_flight = sum(peer in state.in_flight_workers and peer != fetch.peer for peer in needed)

    def fetch_taken(self, fetch: Fetch, outcome: str, now: int, *, failure: Failure | None, received: int) -> None:
        """The event loop takes the result; storing the values, and the spill it causes, comes next."""
        fetch.finished = now
        fetch.outcome = outcome
        fetch.failure = failure
        fetch.missing_keys = len(fetch.keys) - received if outcome == "success" else 0
        if self.fetches.get(fetch.peer) is fetch:
            del self.fetches[fetch.peer]
        self._advance(now)
        self.clocks.flight_ended(fetch.peer, busy=outcome == "busy")
        self._forget_peers()

    def fetch_ended(self, fetch: Fetch) -> None:
        """Its values are stored, or it failed: its last transitions are over."""
        fetch.stored = max(fetch.finished, self.last)
        for observer in self.observers:
            observer.fetch_ended(fetch)
        fetch.wants = []

    def busy_ended(self, peer: str, now: int) -> None:
        self._advance(now)
        self.clocks.busy_ended(peer)
        self._forget_peers()

    # --- gathers ---------------------------------------------------------------------------------------------------

    def gather_began(self, keys: Collection[Key], now: int) -> Gather:
        gather = Gather(keys, self, now)
        self.gathers.add(gather)
        return gather

    def gather_asks(self, gather: Gather, peer: str, keys: Collection[Key], now: int) -> Fetch:
        """One request of a gather. Dask's limits and clocks know nothing of it."""
        fetch = Fetch(peer, keys, 0, self, now, now)
        fetch.gather = gather
        gather.open.add(fetch)
        return fetch

    def gather_asked(
        self, gather: Gather, fetch: Fetch, outcome: str, now: int, *, failure: Failure | None, received: int
    ) -> None:
        if fetch not in gather.open:
            return
        gather.open.remove(fetch)
        fetch.finished = fetch.stored = now
        fetch.outcome, fetch.failure = outcome, failure
        fetch.missing_keys = len(fetch.keys) - received if outcome == "success" else 0
        for observer in self.observers:
            observer.fetch_ended(fetch)

    def gather_ended(self, gather: Gather, outcome: str, now: int, *, failure: Failure | None = None) -> None:
        if gather.ended:
            return
        for fetch in list(gather.open):
            self.gather_asked(gather, fetch, "closed", now, failure=None, received=0)
        gather.ended = now
        gather.outcome, gather.failure = outcome, failure
        self.gathers.discard(gather)
        for observer in self.observers:
            observer.gather_ended(gather)

    # --- serving ---------------------------------------------------------------------------------------------------

    def serve_began(self, keys: Collection[Key], who: str | None, now: int) -> Serve:
        serve = Serve(keys, who, self, self.loop_delay(now), now)
        self.serves.add(serve)
        return serve

    def serve_ended(self, serve: Serve, outcome: str, now: int) -> None:
        if serve.ended:
            return
        serve.ended = now
        serve.outcome = outcome
        self.serves.discard(serve)
        for observer in self.observers:
            observer.serve_ended(serve)

    # --- spilling --------------------------------------------------------------------------------------------------

    def spill_ended(self, op: SpillOp, now: int) -> None:
        op.ended = now
        self.worked(op.begun, now, "unspill" if op.reading else "spill", op.key)
        if op.cause is not None:
            if op.cause.spills is None:
                op.cause.spills = []
            op.cause.spills.append(op)
        for observer in self.observers:
            observer.spill_ended(op)

    def spill_began(self, key: Key, cause: Cause | None, now: int, *, reading: bool) -> SpillOp:
        return SpillOp(key, cause, now, self.clock.offset, reading=reading)

    # --- the event loop --------------------------------------------------------------------------------------------

    def tick(self, now: int) -> int:
        """The worker's periodic tick ran; return how late it is, in ns: as long as the loop was blocked."""
        late = now - self.ticked - self.tick_interval
        self.ticked = now
        if late > self.tick_interval:
            self.loop_blocked = (now, late)
            if late >= TELL_BLOCKED:
                self._blocked(now - late, now)
        self.clock.check()
        return late

    def worked(self, begun: int, ended: int, cause: str, key: Key | None) -> None:
        """The event loop did this piece of work without coming round."""
        if ended - begun >= self.tick_interval:
            self.work.append((begun, ended, cause, key))

    def decoded(self, begun: int, ended: int, tasks: int) -> None:
        """A batch of messages was decoded, which brings `tasks` tasks: each bears an equal share."""
        self.arrival = (ended - begun) // tasks if tasks else 0
        self.worked(begun, ended, "arrival", None)

    def _blocked(self, begun: int, ended: int) -> None:
        cause, key = self._blame(begun, ended)
        self.blocked = Blocked(begun, ended, cause, key, self.clock.offset)
        for observer in self.observers:
            observer.loop_blocked(self.blocked)

    def _blame(self, begun: int, ended: int) -> tuple[str, Key | None]:
        """What filled most of the stretch: work of the loop itself, else the one task that ran."""
        best = (ended - begun) // 2
        found: tuple[str, Key | None] = ("unknown", None)
        for start, end, cause, key in self.work:
            overlap = min(end, ended) - max(start, begun)
            if overlap > best:
                best, found = overlap, (cause, key)
        if found[0] != "unknown":
            return found
        running = {t.key: (t.run_begun, t.run_ended or ended, t.executor) for t in self.tasks.values() if t.run_begun}
        ran = [*running.items(), *((key, (start, end, where)) for start, end, where, key in self.runs)]
        suspects = {key: where for key, (start, end, where) in ran if min(end, ended) - max(start, begun) > best}
        return next(((where, key) for key, where in suspects.items()), found) if len(suspects) == 1 else found

    def loop_delay(self, now: int, since: int = 0) -> int:
        """How long between `since` and `now` the event loop had not come round just before `now`, in ns, as far as its
        ticks tell; an upper bound.
        """
        late = now - self.ticked - self.tick_interval
        ended, length = (now, late) if late > self.tick_interval else self.loop_blocked
        return max(0, min(length, ended - since)) if now - ended < self.tick_interval else 0

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self, now: int) -> None:
        """The worker is closed, or observing it ends: what is still open ends now. It may be called twice."""
        self._advance(now)
        for fetch in list(self.fetches.values()):
            self.fetch_taken(fetch, "closed", now, failure=None, received=0)
            self.fetch_ended(fetch)
        for serve in list(self.serves):
            self.serve_ended(serve, "closed", now)
        for gather in list(self.gathers):
            self.gather_ended(gather, "closed", now)
        for task in list(self.tasks.values()):
            self.task_ended(task, "closed", now)
        for want in list(self.wants.values()):
            self._want_ended(want, now)

    def sizes(self) -> dict[str, Any]:
        """The length of every map: all zero when nothing is going on."""
        return {
            "tasks": len(self.tasks),
            "wants": len(self.wants),
            "fetches": len(self.fetches),
            "serves": len(self.serves),
            "gathers": len(self.gathers),
            "peers": len(self.clocks.peers),
        }
