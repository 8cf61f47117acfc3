"""Token buckets for rates of messages and bytes, and the division of one rate among workers.

Time is an argument. A bucket never refuses: it goes into debt, and the caller waits until the debt is paid.
So an entry larger than the whole bucket passes, and its cost is paid afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

HEADROOM: Final = 1.5
"""A worker that is not throttled first gets this many times the share that it uses; then the rest is
divided."""

RESERVED: Final = 0.1
"""This part of a rate is divided equally, so that a worker without load can begin at once."""

WAIT_S_MIN: Final = 0.001


class Rate(NamedTuple):
    """A limit of messages and of bytes for each period; None means no limit."""

    messages: float | None = None
    bytes: float | None = None
    period_s: float = 1.0
    relative: bool = False
    """Whether the limit is added to the rate at which messages are published."""


class TokenBucket:
    """Tokens flow in at `per_s` until there are `most`; a debt is a negative number of tokens."""

    __slots__ = ("_at", "most", "per_s", "tokens")

    def __init__(self, per_s: float, most: float, now: float) -> None:
        self.per_s = per_s
        self.most = most
        self.tokens = most
        self._at = now

    def take(self, amount: float, now: float) -> None:
        """Take tokens, even more than there are."""
        self._flow(now)
        self.tokens -= amount

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is a token; 0.0 if there is one now."""
        self._flow(now)
        return 0.0 if self.tokens > 0 else max(-self.tokens / self.per_s, WAIT_S_MIN)

    def change(self, per_s: float, most: float, now: float) -> None:
        """Change the rate from now on; the present tokens or debt are kept, up to `most`."""
        self._flow(now)
        self.per_s, self.most = per_s, most
        self.tokens = min(self.tokens, most)

    def _flow(self, now: float) -> None:
        if now > self._at:
            self.tokens = min(self.most, self.tokens + (now - self._at) * self.per_s)
            self._at = now


class RateBucket:
    """The buckets of one rate: one for messages, one for bytes; a full bucket holds one period."""

    __slots__ = ("_buckets", "_messages", "_used", "rate", "share")

    def __init__(self, rate: Rate, now: float, share: float = 1.0) -> None:
        self.rate = rate
        self.share = share
        self._used = [0.0, 0.0]
        self._messages = None if rate.messages is None else _bucket(rate.messages * share, rate, now)
        of_bytes = None if rate.bytes is None else _bucket(rate.bytes * share, rate, now)
        self._buckets = (self._messages, of_bytes)

    def take(self, messages: int, size: int, now: float) -> None:
        """Take tokens for this many messages and bytes."""
        for at, amount in enumerate((messages, size)):
            bucket = self._buckets[at]
            if bucket is not None:
                bucket.take(amount, now)
                self._used[at] += amount

    def wait_s(self, now: float) -> float:
        """Return the seconds until messages may pass; 0.0 if they may now."""
        return max(0.0 if bucket is None else bucket.wait_s(now) for bucket in self._buckets)

    def messages_left(self, now: float, most: int) -> int:
        """Return how many messages may pass now, from 1 to `most`."""
        if self._messages is None:
            return most
        self._messages.wait_s(now)
        return max(1, min(most, int(self._messages.tokens)))

    def change(self, rate: Rate, share: float, now: float) -> None:
        """Follow another rate with the same limits set, or another share of it."""
        self.rate, self.share = rate, share
        for bucket, limit in zip(self._buckets, (rate.messages, rate.bytes), strict=True):
            if bucket is not None and limit is not None:
                most = limit * share
                bucket.change(most / rate.period_s, most, now)

    def take_demand(self, elapsed_s: float) -> float:
        """Return the used fraction of the whole rate since the last call."""
        periods = elapsed_s / self.rate.period_s
        limits = (self.rate.messages, self.rate.bytes)
        used = [amount / (limit * periods) for amount, limit in zip(self._used, limits, strict=True) if limit]
        self._used = [0.0, 0.0]
        return max(used, default=0.0)


def _bucket(most: float, rate: Rate, now: float) -> TokenBucket:
    return TokenBucket(most / rate.period_s, most, now)


def divide(demands: Sequence[float]) -> list[float]:
    """Return the share of a rate for each of several workers; the shares add up to 1.

    A demand is the used fraction of the whole rate, infinite for a worker that had to hold messages up. Small
    demands are met first; workers that want more than there is get equal shares.
    """
    count = len(demands)
    reserved = RESERVED / count
    wants = [max(0.0, demand * HEADROOM - reserved) for demand in demands]
    shares = [reserved] * count
    left = 1.0 - RESERVED
    for place, at in enumerate(sorted(range(count), key=lambda one: wants[one])):
        given = min(wants[at], left / (count - place))
        shares[at] += given
        left -= given
    return [share + left / count for share in shares]
