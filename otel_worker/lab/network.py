"""Links that their transfers share equally: each worker has one for what it sends and one for what it receives."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from simpy import Environment, Event

    from otel_worker.lab.demand import Peer

#: bytes; less than this is rounding
DUST = 1e-3


@dataclass(eq=False)
class Flow:
    """A transfer under way."""

    sender: str
    receiver: str
    remaining: float
    done: Event
    rate: float = 0.0


class Wire:
    """A flow gets the smaller of its sender's and its receiver's bandwidth over their number of flows.

    What one side leaves unused is not given to others (real TCP would), so a slow peer costs its receiver a share.
    """

    def __init__(self, env: Environment, peer: Callable[[str], Peer]) -> None:
        self.env = env
        self.peer = peer
        self.outgoing: dict[str, dict[Flow, None]] = defaultdict(dict)
        self.incoming: dict[str, dict[Flow, None]] = defaultdict(dict)
        self.settled_at: dict[str, float] = {}
        self.version: dict[str, int] = defaultdict(int)
        self.dirty: dict[str, None] = {}

    def transfer(self, sender: str, receiver: str, nbytes: int) -> Event:
        """An event that happens when the last byte has arrived, latency aside."""
        done = self.env.event()
        if nbytes <= 0:
            return done.succeed()
        flow = Flow(sender, receiver, float(nbytes), done)
        self.outgoing[sender][flow] = None
        self.incoming[receiver][flow] = None
        self._changed(flow)
        return done

    def _changed(self, flow: Flow) -> None:
        """Rates change for all who share a link with it: once, after all else that happens at this instant."""
        if not self.dirty:
            self.env.timeout(0).callbacks.append(lambda _: self._share())
        self.dirty[flow.receiver] = None
        self.dirty.update(dict.fromkeys(other.receiver for other in self.outgoing[flow.sender]))

    def _share(self) -> None:
        receivers, self.dirty = list(self.dirty), {}
        for receiver in receivers:
            self._advance(receiver)
        for receiver in receivers:
            self._schedule(receiver)

    def _advance(self, receiver: str) -> None:
        elapsed = self.env.now - self.settled_at.get(receiver, self.env.now)
        self.settled_at[receiver] = self.env.now
        for flow in self.incoming[receiver]:
            flow.remaining -= flow.rate * elapsed

    def _schedule(self, receiver: str) -> None:
        self.version[receiver] += 1
        flows = self.incoming[receiver]
        if not flows:
            return
        down = self.peer(receiver).bandwidth / len(flows)
        for flow in flows:
            sender = self.peer(flow.sender)
            flow.rate = min(down, sender.bandwidth / (len(self.outgoing[flow.sender]) + sender.load))
        version = self.version[receiver]
        soonest = max(0.0, min(flow.remaining / flow.rate for flow in flows))
        self.env.timeout(soonest).callbacks.append(lambda _: self._arrive(receiver, version))

    def _arrive(self, receiver: str, version: int) -> None:
        if version != self.version[receiver]:
            return
        self._advance(receiver)
        soonest = min(flow.remaining for flow in self.incoming[receiver])
        for flow in [flow for flow in self.incoming[receiver] if flow.remaining <= max(DUST, soonest)]:
            del self.incoming[receiver][flow], self.outgoing[flow.sender][flow]
            self._changed(flow)
            flow.done.succeed()
