"""One monotonic clock, anchored to the wall clock."""

import pytest

from otel_worker.facts import Clock

MS = 1_000_000


class Times:
    """A monotonic clock that advances by the given steps, ns, and a wall clock that is `ahead` of it."""

    def __init__(self, *steps: int, ahead: int = 0) -> None:
        self._steps = list(steps)
        self.at = 0
        self.ahead = ahead

    def monotonic(self) -> int:
        self.at += self._steps.pop(0) if self._steps else 10
        return self.at

    def wall(self) -> int:
        return self.at + self.ahead


def clock_of(times: Times) -> Clock:
    clock = Clock()
    clock._monotonic, clock._wall = times.monotonic, times.wall
    clock.offset = clock._measure()
    return clock


def test_a_reading_that_was_interrupted_does_not_count():
    """The thread may lose the processor between the two clocks: the anchor is the best of several readings."""
    times = Times(10, 8 * MS, 10, 10, 10, 8 * MS, ahead=500 * MS)
    assert clock_of(times).offset == pytest.approx(500 * MS, abs=20)


@pytest.mark.parametrize(("jump", "anew"), [(49 * MS, 0), (51 * MS, 1), (-5000 * MS, 1), (3_600_000 * MS, 1)])
def test_the_anchor_is_set_anew_when_the_clocks_drift_apart(jump: int, anew: int):
    times = Times()
    clock = clock_of(times)
    times.ahead += jump
    clock.check()
    assert clock.reanchored == anew
    assert clock.offset == pytest.approx(jump if anew else 0, abs=20)
