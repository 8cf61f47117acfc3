"""The messages of a run: random values, keys by a distribution, and the times at which they are due.

Pure: randomness and time are arguments.

Example: with 4 keys and `zipf`, whose weights are 1, 1/2, 1/3 and 1/4, the first key gets 48 % of the
messages and the last one 12 %. At 1,000 messages a second, message 250 is due 0.25 s after the start.
"""

from __future__ import annotations

import random
import re
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from anabranch.errors import InvalidConfigurationError

KeyDistribution = Literal["uniform", "zipf", "round-robin"]

TIME = struct.Struct("<d")
MARK_BYTES = 8
MARKED_BYTES = MARK_BYTES + TIME.size
"""The smallest value that can carry a mark and a time."""

POOL_BYTES = 4 * 2**20
"""Random bytes that values are cut from, at random places. Making new bytes for every message would be slower
than sending them, and a constant would compress to nothing."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The sizes of values; every size between the two, both included, is equally likely."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> SizeRange:
        """Read `100`, or `50-2000`; raises InvalidConfigurationError."""
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
        if found is None:
            raise InvalidConfigurationError(
                f"--size {text}: write a number of bytes, or a range like 50-2000"
            )
        least, most = int(found[1]), int(found[2] or found[1])
        if least > most:
            raise InvalidConfigurationError(f"--size {text}: the first number must not exceed the second")
        return cls(least, most)


@dataclass(frozen=True, slots=True)
class Workload:
    """The messages of a run: their sizes and keys."""

    sizes: SizeRange
    keys: int
    """The number of different keys; 0 sends messages without keys."""
    distribution: KeyDistribution
    mark: bytes = b""
    """Begins each value of a run that measures latency; the time at which the message was due follows."""


class MessageSource:
    """Draws the values and keys of one producer."""

    def __init__(self, workload: Workload, rng: random.Random) -> None:
        self._sizes = workload.sizes
        self._mark = workload.mark
        self._rng = rng
        self._pool = rng.randbytes(max(POOL_BYTES, 2 * workload.sizes.most))
        self._keys = [f"key-{number}" for number in range(workload.keys)]
        self._weights: list[float] | None = None
        if workload.distribution == "zipf":
            self._weights = list(accumulate(1 / rank for rank in range(1, workload.keys + 1)))
        self._turn = rng.randrange(workload.keys) if workload.distribution == "round-robin" else None

    def values(self, count: int) -> list[bytes]:
        """Return random values."""
        pool, randrange = self._pool, self._rng.randrange
        least, most = self._sizes.least, self._sizes.most
        if least == most:
            starts = [randrange(len(pool) - most + 1) for _ in range(count)]
            return [pool[start : start + most] for start in starts]
        sizes = [randrange(least, most + 1) for _ in range(count)]
        starts = [randrange(len(pool) - size + 1) for size in sizes]
        return [pool[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def marked(self, value: bytes, due: float) -> bytes:
        """Return the value with the mark and the time at which it was due, if the run has a mark."""
        if not self._mark:
            return value
        stamp = self._mark + TIME.pack(due)
        return stamp + value[len(stamp) :]

    def keys(self, count: int) -> list[str | None]:
        """Return the keys of as many messages."""
        if not self._keys:
            return [None] * count
        if self._turn is None:
            return list(self._rng.choices(self._keys, cum_weights=self._weights, k=count))
        first, self._turn = self._turn, (self._turn + count) % len(self._keys)
        return [self._keys[(first + number) % len(self._keys)] for number in range(count)]


def due_of(value: bytes, mark: bytes) -> float | None:
    """Return the time at which a message was due; None if it is a message of another run."""
    if not value.startswith(mark) or len(value) < len(mark) + TIME.size:
        return None
    return float(TIME.unpack_from(value, len(mark))[0])


class SendPace:
    """The times at which the messages of one producer are due, at a steady rate.

    A latency counts from the time a message was due, not from the time it was sent. A producer that is held
    up sends late, and the messages that waited behind it must not look faster than they were.
    """

    def __init__(self, per_second: float, began: float) -> None:
        self._per_second = per_second
        self._began = began
        self._taken = 0

    def due(self, now: float) -> int:
        """Return how many messages are due and were not taken."""
        return max(0, int((now - self._began) * self._per_second) + 1 - self._taken)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next message is due; 0 or less if one is due."""
        return self._began + self._taken / self._per_second - now

    def take(self, count: int = 1) -> float:
        """Take the next messages; return the time at which the last of them is due."""
        self._taken += count
        return self._began + (self._taken - 1) / self._per_second
