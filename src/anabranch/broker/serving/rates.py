"""Rates out of counters that only grow, over a sliding window of the monotonic clock.

The hot paths only count; a timer takes the samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class RateMeter:
    """Per-second rates of several counters over the last `window_s` seconds.

    A meter younger than its window divides by the whole window all the same: a first burst is no rate.
    """

    SAMPLES = 5
    """Samples in one window; the window slides by this fraction of itself."""

    def __init__(self, window_s: float, now: float, counters: Sequence[int]) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque([(now, tuple(counters))])

    def sample(self, now: float, counters: Sequence[int]) -> None:
        """Remember the counters; of the samples older than the window only the newest stays."""
        samples = self._samples
        samples.append((now, tuple(counters)))
        while len(samples) > 1 and samples[1][0] <= now - self._window_s:
            samples.popleft()

    def rates(self, now: float, counters: Sequence[int]) -> tuple[float, ...]:
        """The growth of each counter since the oldest sample, per second."""
        began, base = self._samples[0]
        elapsed = max(now - began, self._window_s)
        return tuple((count - before) / elapsed for count, before in zip(counters, base, strict=True))
