"""How long the event loop kept something waiting, told from its ticks of 20 ms with exact times."""

import pytest

from tests.desk import SECOND, Desk, ns


def blocked(desk: Desk, begun: float, ended: float) -> None:
    """The loop ticks every 20 ms, is blocked from `begun` on, and ticks again at `ended`."""
    ticks = round(begun / 0.02)
    for i in range(ticks + 1):
        desk.recorder.tick(ns(i * 0.02))
    desk.recorder.tick(ns(ended))


def delay(desk: Desk, now: float, since: float) -> float:
    return desk.recorder.loop_delay(ns(now), ns(since)) / SECOND


@pytest.mark.parametrize(
    ("now", "since", "expected"),
    [
        (1.0, 0.2, 0.48),  # a tick was due at 0.52
        (1.01, 0.2, 0.48),
        (1.01, 0.9, 0.1),  # asked while it was blocked
        (1.015, 1.005, 0.0),  # asked after that
        (1.03, 0.2, 0.0),  # it has come round since
    ],
)
def test_only_what_lies_after_the_beginning_counts(now: float, since: float, expected: float):
    desk = Desk()
    blocked(desk, 0.5, 1.0)
    assert delay(desk, now, since) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("since", "expected"), [(0.2, 0.38), (0.7, 0.2), (0.9, 0.0)])
def test_a_loop_that_has_not_ticked_yet_counts_up_to_now(since: float, expected: float):
    desk = Desk()
    desk.recorder.tick(ns(0.5))
    assert delay(desk, 0.9, since) == pytest.approx(expected, abs=1e-9)


def test_a_tick_that_is_late_by_less_than_its_interval_is_none():
    desk = Desk()
    desk.recorder.tick(ns(0.5))
    assert delay(desk, 0.535, 0.0) == 0
