"""Counts of a run, and latencies in buckets of one per cent, so that a run of any length needs little memory.

Example: 1.000 ms and 1.004 ms fall into the same bucket, and a percentile names its upper end, 1.005 ms.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PER_CENT = 1 / math.log(1.01)
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


class Latencies:
    """A histogram of seconds; percentiles are exact to one per cent."""

    def __init__(self) -> None:
        self.buckets: Counter[int] = Counter()
        self.count = 0
        self.total_s = 0.0
        self.max_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count messages that took this long."""
        micros = seconds * 1e6
        self.buckets[int(math.log(micros) * PER_CENT) + 1 if micros > 1 else 0] += count
        self.count += count
        self.total_s += seconds * count
        if seconds > self.max_s:
            self.max_s = seconds

    def merge(self, other: Latencies) -> None:
        self.buckets.update(other.buckets)
        self.count += other.count
        self.total_s += other.total_s
        self.max_s = max(self.max_s, other.max_s)

    def percentile(self, share: float) -> float:
        """Return the seconds within which this share of the messages was done; 0 without messages."""
        left = math.ceil(share * self.count)
        for bucket, count in sorted(self.buckets.items()):
            left -= count
            if left <= 0:
                return min(self.max_s, math.exp(bucket / PER_CENT) / 1e6)
        return self.max_s

    def milliseconds(self) -> dict[str, float]:
        """Return mean, percentiles and maximum, for people and scripts."""
        found = {"mean": self.total_s / self.count if self.count else 0.0}
        found |= {name: self.percentile(share) for name, share in SHARES.items()}
        return {name: round(seconds * 1000, 3) for name, seconds in (found | {"max": self.max_s}).items()}


@dataclass(slots=True)
class Interval:
    """The counts between two reports, or those of a whole run."""

    seconds: float = 0.0
    messages: int = 0
    bytes: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    def merge(self, other: Interval) -> None:
        self.seconds += other.seconds
        self.messages += other.messages
        self.bytes += other.bytes
        self.latencies.merge(other.latencies)

    def rates(self) -> tuple[float, float]:
        """Return messages and bytes per second; 0 without time."""
        return (self.messages / self.seconds, self.bytes / self.seconds) if self.seconds > 0 else (0.0, 0.0)


class BenchTally:
    """Counts messages as they are stored or received, with those that failed."""

    def __init__(self) -> None:
        self._recent = Interval()
        self._recent_since: float | None = None
        self._whole = Interval()
        self._last_at = 0.0
        self.messages = 0
        """Messages of the whole run so far, without those that failed."""
        self.errors: Counter[str] = Counter()

    def start(self, now: float) -> None:
        """Begin to count time; later calls change nothing."""
        if self._recent_since is None:
            self._recent_since = self._last_at = now

    def add(self, now: float, messages: int, size: int, latency_s: float | None = None) -> None:
        recent = self._recent
        self.messages += messages
        recent.messages += messages
        recent.bytes += size
        self._last_at = now
        if latency_s is not None:
            recent.latencies.add(latency_s, messages)

    def fail(self, error: BaseException, messages: int) -> None:
        self.errors[f"{type(error).__name__}: {error}"] += messages

    def take(self, now: float) -> Interval:
        """Return what was counted since the last call."""
        taken, self._recent = self._recent, Interval()
        if self._recent_since is not None:
            taken.seconds = now - self._recent_since
            self._recent_since = now
        self._whole.merge(taken)
        return taken

    def whole(self) -> Interval:
        """Return the whole run up to its last message: the time after it says nothing about the rate."""
        self.take(self._last_at)
        return self._whole


def figures(whole: Interval, errors: Counter[str]) -> dict[str, Any]:
    """Return the figures of a run for scripts."""
    messages_s, bytes_s = whole.rates()
    found: dict[str, Any] = {
        "messages": whole.messages,
        "bytes": whole.bytes,
        "seconds": round(whole.seconds, 3),
        "messages_per_second": round(messages_s, 1),
        "bytes_per_second": round(bytes_s, 1),
        "errors": dict(errors),
    }
    if whole.latencies.count:
        found["latency_ms"] = whole.latencies.milliseconds()
    return found
