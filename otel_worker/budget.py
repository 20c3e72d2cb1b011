"""How many spans may be started: a token bucket, and the counters of what became of those that were wanted."""

from __future__ import annotations

RECORDED, COALESCED, DROPPED, UNSAMPLED = "recorded", "coalesced", "dropped", "unsampled"


class Budget:
    """Tokens for spans, refilled with time, some of them kept for what failed or was slow.

    Parameters
    ----------
    rate: spans a second.
    burst: tokens that can be saved up.
    reserve: the share of `burst` that only `urgent` takers may use.

    """

    __slots__ = ("_at", "_burst", "_floor", "_rate", "_tokens", "spans")

    def __init__(self, rate: float, burst: float, now: int, *, reserve: float = 0.25) -> None:
        self._rate = rate / 1e9
        self._burst = burst
        self._floor = burst * reserve
        self._tokens = float(burst)
        self._at = now
        self.spans = {RECORDED: 0, COALESCED: 0, DROPPED: 0, UNSAMPLED: 0}

    def could(self, n: int, now: int, *, urgent: bool = False) -> bool:
        """Whether `take` would say yes."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
        return self._tokens - n >= (0.0 if urgent else self._floor)

    def take(self, n: int, now: int, *, urgent: bool = False) -> bool:
        """Take `n` tokens, or none. `now` is in ns of one monotonic clock."""
        if not self.could(n, now, urgent=urgent):
            return False
        self._tokens -= n
        return True

    def count(self, outcome: str, n: int = 1) -> None:
        self.spans[outcome] += n
