"""A recorder at a desk: tests say what Dask's state machine did, in seconds, and read the sums back in seconds.

The views stand in for Dask's `TaskState` and `WorkerState` where a real cluster can't give exact times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otel_worker.facts import Clock, Fetch, Task
from otel_worker.recorder import Recorder

SECOND = 1_000_000_000


def ns(seconds: float) -> int:
    return round(seconds * SECOND) + SECOND  # 0 means "did not happen"


@dataclass(eq=False)
class View:
    key: Any
    prefix: str = "x"
    state: str = "released"
    run_id: int = 1
    priority: tuple[int, ...] | None = (0,)
    annotations: dict[str, Any] | None = None
    who_has: set[str] = field(default_factory=set)
    coming_from: str | None = None
    nbytes: int | None = 8
    exception_text: str = ""
    waiting_for_data: set[View] = field(default_factory=set)
    waiters: set[View] = field(default_factory=set)
    dependencies: set[View] = field(default_factory=set)


class State:
    running = True
    nthreads = 1
    transfer_incoming_bytes = 0
    transfer_incoming_bytes_limit = 100.0
    throttled = False

    def __init__(self) -> None:
        self.busy_workers: set[str] = set()
        self.in_flight_workers: dict[str, Any] = {}
        self.executing: set[Any] = set()
        self.data_needed: dict[str, Any] = {"tcp://a": 1}
        self.stimulus_log: list[Any] = []

    def _should_throttle_incoming_transfers(self) -> bool:
        return self.throttled


class Desk:
    """Say what happens at `at` seconds."""

    def __init__(self) -> None:
        self.state = State()
        self.recorder = Recorder(self.state, Clock(), ns(0))
        self.views: dict[Any, View] = {}
        self.ended: list[Task] = []
        self.fetches: list[Fetch] = []
        self.recorder.observers.append(self)

    # --- the observer --------------------------------------------------------------------------------------------------

    def task_ended(self, task: Task) -> None:
        self.ended.append(task)

    def fetch_ended(self, fetch: Fetch) -> None:
        self.fetches.append(fetch)

    def serve_ended(self, _serve: object) -> None: ...
    def gather_ended(self, _gather: object) -> None: ...
    def spill_ended(self, _op: object) -> None: ...
    def key_released(self, _key: object) -> None: ...
    def loop_blocked(self, _blocked: object) -> None: ...

    # --- saying --------------------------------------------------------------------------------------------------------

    def view(self, key: str) -> View:
        return self.views.setdefault(key, View(key, key.rpartition("-")[0] or key))

    def move(self, at: float, **states: str) -> None:
        """Keys go to states, in one call of `TaskCounter.transitions`."""
        moves = {}
        for key, state in states.items():
            view = self.view(key)
            moves[view] = view.state
            view.state = state
        self.recorder.moved(moves, ns(at))  # type: ignore[arg-type]

    def wait(self, at: float, task: str, deps: str, **states: str) -> None:
        """A task arrives that lacks `deps`; those that were not wanted yet go to the given states."""
        for dep in deps.split():
            self.view(task).waiting_for_data.add(self.view(dep))
            self.view(dep).waiters.add(self.view(task))
        self.move(at, **states, **{task: "waiting"})

    def held(self, key: str, *holders: str) -> None:
        self.view(key).who_has = set(holders)

    def fetch(self, at: float, peer: str, keys: str) -> Fetch:
        """Keys go to flight and their request begins at once."""
        for key in keys.split():
            self.view(key).coming_from = peer
        self.move(at, **dict.fromkeys(keys.split(), "flight"))
        return self.begin(at, peer, keys)

    def begin(self, at: float, peer: str, keys: str) -> Fetch:
        fetch = self.recorder.fetch_began(peer, keys.split(), 8, ns(at))
        fetch.sent = ns(at)
        return fetch

    def end(self, at: float, fetch: Fetch, outcome: str = "success", **states: str) -> None:
        """The reply is taken; keys go to memory, or to `states`."""
        self.recorder.fetch_taken(fetch, outcome, ns(at), failure=None, received=len(fetch.keys))
        self.move(at, **(states or {str(key): "memory" for key in fetch.keys}))
        self.recorder.fetch_ended(fetch)

    # --- reading -------------------------------------------------------------------------------------------------------

    def waited(self, key: str) -> dict[str, float]:
        """Where the waiting of a task went, in seconds; its parts sum to the whole, to the nanosecond."""
        task = self.recorder.tasks.get(key) or next(t for t in self.ended if t.key == key)
        parts = task.wait_parts or {}
        assert sum(parts.values()) == task.wait_ended - task.waiting
        return {name: round(part / SECOND, 9) for name, part in sorted(parts.items())}
