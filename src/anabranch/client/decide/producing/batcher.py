"""Which messages of a segment share an entry. Pure.

Each bucket of the segment has one open batch, and a batch never mixes buckets. When a batch reaches a limit,
all batches close together and leave in the order of their highest sequence ids, because the broker recognises
a repeated entry by a number that must only rise.

Example: a segment has 8 buckets and the limits are 1,000 messages and 128 KiB. The open batches together may
hold four full ones, so each batch gets half of the limits: 500 messages and 64 KiB. Messages 0, 2 and 5 are
in the batch of bucket A, and 1, 3 and 4 in that of bucket B. When one of them closes, both do, and B with its
highest id 4 leaves before A with 5.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anabranch.client.decide.producing.outgoing import Extras, Outgoing, Row
from anabranch.client.options import Batching
from anabranch.model.hashing import bucket_ranges
from anabranch.speedups import OpenPlace

MESSAGE_OVERHEAD_BYTES = 24
"""About the size of a message's header inside a batch; the limits need no more precision."""


FULL_BATCHES_MAX = 4
"""How many full batches a segment may have open; with more buckets each batch gets a smaller share."""


@dataclass(slots=True)
class BucketFill:
    """Totals of a producer's batches for one bucket; emptier batches are the cost of more buckets."""

    limits: Batching
    entries: int = 0
    messages: int = 0
    bytes: int = 0

    @property
    def messages_per_entry(self) -> float:
        return self.messages / self.entries if self.entries else 0.0

    @property
    def ratio(self) -> float:
        """How full the mean batch was, by the limit it came nearest to; batches of one message are full."""
        if not self.entries:
            return 0.0
        parts = self.messages / self.limits.max_messages, self.bytes / self.limits.max_bytes
        return max(parts) / self.entries

    def add(self, batch: Outgoing) -> None:
        self.entries += 1
        self.messages += batch.count
        self.bytes += batch.size


class OpenBucket(OpenPlace):
    """One bucket of a segment, with the batch that messages are added to.

    `room` messages and `bytes_left` still fit before all batches of the segment must close.
    """

    __slots__ = ("batcher", "fill", "slot")
    batch: Outgoing | None

    def __init__(self, batcher: SegmentBatcher, slot: int) -> None:
        self.batcher = batcher
        self.fill = BucketFill(batcher.limits)
        self.slot = slot
        """First hash of the bucket, the stamp of messages without a key."""
        self.close()

    def close(self) -> None:
        """Have no open batch."""
        self.batch = self.rows = None
        self.room, self.bytes_left = self.batcher.limits.max_messages, self.batcher.limits.max_bytes

    # `room` and `bytes_left` count down, so the hot path compares with zero and needs no look at the limits.
    # They are fields of a C object (`OpenPlace`) that compiled code reads without calling Python; a compiled
    # `enqueue` that read attributes of Python objects was slower than Python (docs/decisions.md).
    def add(self, batch: Outgoing, row: Row, size: int, extras: Extras | None = None) -> bool:
        """Add one message to the open batch; return whether the batch is full, so that all must close."""
        if extras is not None:
            if batch.extras is None:
                batch.extras = {}
            batch.extras[len(batch.rows)] = extras
        batch.rows.append(row)
        self.room = room = self.room - 1
        self.bytes_left = left = self.bytes_left - size
        return room <= 0 or left <= 0


class SegmentBatcher:
    """The open batches of one segment."""

    __slots__ = ("_splits", "buckets", "limits", "opened", "owner")

    def __init__(self, splits: Sequence[int], limits: Batching, owner: Any = None) -> None:
        self._splits = tuple(splits)
        self.limits = _limits_of_bucket(limits, len(self._splits) + 1)
        """The limits of each batch."""
        self.owner = owner
        """The producer of the segment."""
        self.buckets = tuple(OpenBucket(self, bucket.start) for bucket in bucket_ranges(self._splits))
        self.opened: dict[OpenBucket, Outgoing] = {}
        """The open batches, the oldest first."""

    def bucket_for(self, slot: int) -> OpenBucket:
        """Return the bucket that a bucket hash lies in."""
        return self.buckets[bisect_right(self._splits, slot)]

    def begin(self, bucket: OpenBucket, now: float) -> Outgoing:
        """Open a batch in a bucket that has none."""
        batch = bucket.batch = self.opened[bucket] = Outgoing(now)
        bucket.rows = batch.rows
        return batch

    @property
    def oldest_at(self) -> float | None:
        """When the oldest open batch was begun; None when no batch is open."""
        return next((batch.begun_at for batch in self.opened.values()), None)

    def take(self) -> list[Outgoing]:
        """Close all open batches and return them in the order they must be sent."""
        taken = list(self.opened.values())
        for bucket in self.opened:
            bucket.close()
        self.opened.clear()
        # Sequence ids within a batch only rise: a producer sends a message with a smaller one by itself.
        taken.sort(key=lambda batch: batch.rows[-1][2])
        return taken


def _limits_of_bucket(limits: Batching, buckets: int) -> Batching:
    """Return the limits of each batch of a segment; all open batches hold four times `limits` at most."""
    share = max(1.0, buckets / FULL_BATCHES_MAX)
    messages, size = int(limits.max_messages / share), int(limits.max_bytes / share)
    return replace(limits, max_messages=max(1, messages), max_bytes=max(1, size))


def message_size(value: bytes, key: str | bytes | None) -> int:
    """Return the size of a message as the limits of a batch count it."""
    return len(value) + (len(key) if key is not None else 0) + MESSAGE_OVERHEAD_BYTES
