"""Medians with their spread."""

from __future__ import annotations

import random
from statistics import median
from typing import NamedTuple

RESAMPLES = 2000


class Spread(NamedTuple):
    """A median, and the interval in which it lies in 95 of 100 resamplings (bootstrap)."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Return the median of `values` with its bootstrap interval; the same for the same values."""
    drawn = random.Random(0)
    medians = sorted(median(drawn.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Spread(median(values), medians[RESAMPLES // 40], medians[-RESAMPLES // 40 - 1])
