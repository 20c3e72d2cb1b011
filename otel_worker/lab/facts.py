"""What happened in a run: requests with their phases, and when each key was in which state. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import WorkerPlugin

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Request:
    """One GatherDep, from the decision to its outcome."""

    worker: str
    peer: str
    issued: float
    keys: tuple[Any, ...] = ()
    nbytes: int = 0
    connected: float | None = None
    served: float | None = None  # the peer's event loop is done with it, the transfer begins
    received: float | None = None  # the last byte is here
    finished: float | None = None
    outcome: str = "open"  # success | busy | dropped


@dataclass
class Span:
    """A key's stay in one state."""

    state: str
    start: float
    stop: float | None = None
    holders: tuple[str, ...] = ()
    request: Request | None = None


@dataclass
class Dependent:
    """A task that waited for data."""

    key: Any
    needs: tuple[Any, ...]
    waiting: float
    ready: float | None = None


@dataclass
class WorkerFacts:
    """All that a run keeps of one worker."""

    address: str
    requests: list[Request] = field(default_factory=list)
    spans: dict[Any, list[Span]] = field(default_factory=dict)
    dependents: dict[Any, Dependent] = field(default_factory=dict)
    #: (since, reason): why a key that somebody could be asked for is not asked for
    held_back: list[tuple[float, str]] = field(default_factory=list)
    #: by peer: (from, until) it must not be asked after a "busy"
    busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    stimuli: int = 0
    stimulus_seconds: float | None = None
    decision_seconds: float | None = None
    heap_operations: int | None = None

    def arrived(self) -> list[float]:
        """When each key that was fetched came, in order."""
        return sorted(
            request.finished
            for request in self.requests
            if request.outcome == "success" and request.finished is not None
            for _ in request.keys
        )


class Observer(WorkerPlugin):  # type: ignore[misc]
    """Sees every transition, as any plugin of a Dask worker does, and keeps when keys were in which state."""

    TRACKED = frozenset({"fetch", "flight", "missing"})

    def __init__(
        self, facts: WorkerFacts, clock: Callable[[], float], holders: Callable[[Any], tuple[str, ...]]
    ) -> None:
        self.facts = facts
        self.clock = clock
        self.holders = holders
        self.flying: dict[Any, Request] = {}

    def transition(self, key: Any, start: str, finish: Any, **_: Any) -> None:  # noqa: ARG002
        now = self.clock()
        spans = self.facts.spans.get(key)
        if spans and spans[-1].stop is None:
            spans[-1].stop = now
        if finish in self.TRACKED:
            holders = self.holders(key) if finish == "fetch" else ()
            self.facts.spans.setdefault(key, []).append(Span(finish, now, holders=holders))
        elif key in self.facts.dependents:
            self._dependent(self.facts.dependents[key], finish, now)

    def _dependent(self, dependent: Dependent, finish: str, now: float) -> None:
        if finish in ("ready", "constrained") and dependent.ready is None:
            dependent.ready = now

    def holders_changed(self, key: Any) -> None:
        """A key in `fetch` has other holders from now on."""
        spans = self.facts.spans.get(key)
        if spans and spans[-1].state == "fetch" and spans[-1].stop is None:
            self.transition(key, "fetch", "fetch")
