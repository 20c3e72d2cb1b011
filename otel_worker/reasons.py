"""Why a key is not requested yet and why a task does not start yet: cumulative clocks, O(1) a transition.

A clock ticks for each reason that holds for the whole worker; while none holds, the "open" clock ticks, and on it, for each
peer, how long that peer was busy or already had a request. The time between two readings is then split exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_worker import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_worker.facts import StateView

PAUSED, COUNT, BYTES, OPEN = range(4)


class Marks(NamedTuple):
    """A reading: when, the four global clocks, and for each holder its in-flight and busy clocks."""

    at: int
    clocks: tuple[int, int, int, int]
    holders: tuple[tuple[str, int, int], ...]


class PeerClock:
    """How long a peer had a request of ours, and how long it was busy, on the open clock."""

    __slots__ = ("busy", "busy_since", "flight", "flight_since")

    def __init__(self) -> None:
        self.flight = self.busy = 0
        self.flight_since = self.busy_since = -1

    def read(self, open_clock: int) -> tuple[int, int]:
        flight = self.flight + (open_clock - self.flight_since if self.flight_since >= 0 else 0)
        busy = self.busy + (open_clock - self.busy_since if self.busy_since >= 0 else 0)
        return flight, busy

    @property
    def idle(self) -> bool:
        return self.flight_since < 0 and self.busy_since < 0


class Clocks:
    """The clocks of one worker. Call `advance` at each transition, also when nothing moved."""

    __slots__ = ("_full", "_since", "clocks", "full", "peers", "ready_paused", "reason")

    def __init__(self, now: int) -> None:
        self.clocks = [0, 0, 0, 0]
        self.full = 0  # all threads taken, while not paused
        self.ready_paused = 0
        self.reason = OPEN
        self.peers: dict[str, PeerClock] = {}
        self._since = now
        self._full = False

    def advance(self, state: StateView, now: int) -> None:
        """Bill the time since the last call to the reasons that held, then look which hold from now on."""
        elapsed = now - self._since
        self._since = now
        self.clocks[self.reason] += elapsed
        if self.reason == PAUSED:
            self.ready_paused += elapsed
        elif self._full:
            self.full += elapsed
        self._full = len(state.executing) >= state.nthreads
        if not state.running:
            self.reason = PAUSED
        elif not state.data_needed or not state._should_throttle_incoming_transfers():
            self.reason = OPEN
        else:
            self.reason = BYTES if state.transfer_incoming_bytes >= state.transfer_incoming_bytes_limit else COUNT

    # --- ready -----------------------------------------------------------------------------------------------------

    def ready_marks(self) -> tuple[int, int, int]:
        return self._since, self.ready_paused, self.full

    def ready_parts(self, marks: tuple[int, int, int], *, resources: bool) -> dict[str, int]:
        """Split the time since `marks` (ns): paused before thread_slot before resources."""
        total = self._since - marks[0]
        paused = self.ready_paused - marks[1]
        rest = total - paused
        full = self.full - marks[2] if resources else rest
        parts = {names.READY_PAUSED: paused, names.READY_THREAD_SLOT: full, names.READY_RESOURCES: rest - full}
        return {name: ns for name, ns in parts.items() if ns}

    # --- fetch -----------------------------------------------------------------------------------------------------

    def flight_began(self, peer: str) -> None:
        self.peers.setdefault(peer, PeerClock()).flight_since = self.clocks[OPEN]

    def flight_ended(self, peer: str, *, busy: bool) -> None:
        if (clock := self.peers.get(peer)) is None:
            return
        now = self.clocks[OPEN]
        if clock.flight_since >= 0:
            clock.flight += now - clock.flight_since
            clock.flight_since = -1
        if busy and clock.busy_since < 0:
            clock.busy_since = now

    def busy_ended(self, peer: str) -> None:
        clock = self.peers.get(peer)
        if clock is not None and clock.busy_since >= 0:
            clock.busy += self.clocks[OPEN] - clock.busy_since
            clock.busy_since = -1

    def forget_idle_peers(self) -> None:
        """Call when no key is wanted any more: nobody holds readings then."""
        self.peers = {peer: clock for peer, clock in self.peers.items() if not clock.idle}

    def read(self, holders: Iterable[str]) -> Marks:
        open_clock = self.clocks[OPEN]
        peers = tuple((h, *(self.peers[h].read(open_clock) if h in self.peers else (0, 0))) for h in holders)
        return Marks(self._since, (self.clocks[0], self.clocks[1], self.clocks[2], open_clock), peers)

    def split(self, marks: Marks) -> dict[str, int]:
        """Split the time since `marks` among the reasons, in ns; the sum is the whole."""
        parts = {
            names.QUEUED_PAUSED: self.clocks[PAUSED] - marks.clocks[PAUSED],
            names.QUEUED_COUNT: self.clocks[COUNT] - marks.clocks[COUNT],
            names.QUEUED_BYTES: self.clocks[BYTES] - marks.clocks[BYTES],
        }
        rest = opened = self.clocks[OPEN] - marks.clocks[OPEN]
        n = len(marks.holders)
        for peer, flight_before, busy_before in marks.holders:
            clock = self.peers.get(peer)
            flight, busy = clock.read(self.clocks[OPEN]) if clock else (flight_before, busy_before)
            for name, ns in ((names.QUEUED_BUSY, busy - busy_before), (names.QUEUED_IN_FLIGHT, flight - flight_before)):
                share = min(rest, min(ns, opened) // n)
                parts[name] = parts.get(name, 0) + share
                rest -= share
        parts[names.QUEUED_HEAD_OF_LINE] = rest
        return {name: ns for name, ns in parts.items() if ns}
