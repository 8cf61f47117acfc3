"""Histograms of durations, cheap enough for the paths of entries: two additions for one observation.

This module must not know what is measured, nor how histograms are shown.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets, each included; one more bucket has no bound."""


class TimeHistogram:
    """Counts durations by bucket; the numbers only grow."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Observations in each bucket, not in the buckets below it."""
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, once for each entry that shares it."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.sum_s += seconds * times


@dataclass(frozen=True, slots=True)
class Timings:
    """The durations that one broker measures."""

    publish: TimeHistogram = field(default_factory=TimeHistogram)
    """Per entry: from the first entry of a commit that its log took until the receipts of the commit."""
    sync: TimeHistogram = field(default_factory=TimeHistogram)
    """Per commit: the write of the journal and its sync."""
    dispatch: TimeHistogram = field(default_factory=TimeHistogram)
    """Per turn of a subscription: from its wake-up until entries were written to consumers."""
