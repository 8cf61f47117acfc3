"""Rates of growing counters over a sliding window."""

from __future__ import annotations

from collections.abc import Sequence


class RateMeter:
    """Per-second rates of counters over the last `window_s` seconds, also when the meter is younger.

    The meter of an idle log keeps one sample, because a broker may have many idle logs.
    """

    __slots__ = ("_samples", "_window_s")

    SAMPLES = 5
    """Samples in one window; the window slides by this fraction of itself."""

    def __init__(self, window_s: float, now: float, counters: Sequence[int]) -> None:
        self._window_s = window_s
        self._samples: list[tuple[float, tuple[int, ...]]]
        self.restart(now, counters)

    def restart(self, now: float, counters: Sequence[int]) -> None:
        """Count from these counters on."""
        self._samples = [(now, tuple(counters))]

    def sample(self, now: float, counters: Sequence[int]) -> None:
        """Remember the counters; of the samples older than the window only the newest stays."""
        samples, newest = self._samples, tuple(counters)
        if samples[0][1] == newest:
            self._samples = [(now, samples[0][1])]
            return
        samples.append((now, newest))
        while len(samples) > 1 and samples[1][0] <= now - self._window_s:
            del samples[0]

    def rates(self, now: float, counters: Sequence[int]) -> tuple[float, ...]:
        """Return the growth of each counter since the oldest sample, per second."""
        began, base = self._samples[0]
        elapsed = max(now - began, self._window_s)
        return tuple((count - before) / elapsed for count, before in zip(counters, base, strict=True))
