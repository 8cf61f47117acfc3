"""Which messages of a segment share an entry.

Each bucket of the segment has one open batch, and a batch never mixes buckets. Limits count over all open
batches of the segment; when a limit is reached, all batches close together and leave in the order of their
highest sequence ids, because the broker recognises a repeated entry by a number that must only rise.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anabranch.client.options import Batching
from anabranch.model.hashing import bucket_ranges
from anabranch.protocol.batches import MessageBatch, build_single
from anabranch.protocol.compression import Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.schema_stamps import with_schema_version

MESSAGE_OVERHEAD_BYTES = 24
"""About the size of a message's header inside a batch; the limits need no more precision."""


SAMPLE_KEY_BYTES_MAX = 256
"""Longest key that a batch carries as a sample."""


class Extras(NamedTuple):
    """The rarely used parts of a message."""

    properties: Mapping[str, str] | None = None
    event_time_ms: int = 0
    null_value: bool = False
    deliver_at_ms: int = 0
    """When set, the message travels alone."""


Row = tuple[bytes, str | bytes | None, int, int]
"""Value, key, sequence id and bucket hash of one message."""

StoredAt = tuple[int, int, int]
"""Segment, ledger and entry of a stored batch; -1 where the broker did not say."""

OPEN, STORED, FAILED, MOVED = range(4)


@dataclass(slots=True, eq=False)
class Outgoing:
    """Messages of one bucket that become one entry: first rows, then bytes, then an outcome.

    When a segment is sealed, its messages move to batches of its successors: `moved` then holds the new batch
    and index of each message, so that the message's future can follow.
    """

    begun_at: float
    rows: list[Row] = field(default_factory=list)
    extras: dict[int, Extras] | None = None
    entry: bytes = b""
    schema_version: bytes = b""
    """The version of the schema of its values; empty without one."""
    batched: bool = True
    """Whether the entry is a batch, also of one message."""
    count: int = 0
    deliver_at_ms: int = 0
    judged: bool = False
    """Whether its one message may be stored already; it travels alone, for the broker to find out."""
    slot: int | None = None
    """The place of that message on the ring, if it has no key."""
    sequence: int = -1
    size: int = 0
    state: int = OPEN
    place: StoredAt = (-1, -1, -1)
    error: Exception | None = None
    seen: bool = False
    moved: Sequence[tuple[Outgoing, int]] = ()
    tried: bool = False
    """Whether the entry was ever sent, so that it may be stored without the producer's knowing."""
    unanswered_chunks: int = 0
    """Chunks without a receipt, if the entry was too large and is sent in several."""
    follows: bool = False
    """Whether the entry closed together with the one before it. Their sequence ids may alternate, so they
    leave together: with one of them stored, the broker takes a repetition of the other for a duplicate."""
    waiters: list[tuple[Any, Callable[..., object], Any]] | None = None
    trackers: list[Any] | None = None

    def build(self, producer_name: str, now_ms: int, compression: Compression, batched: bool) -> None:
        """Turn the rows into an entry; afterwards the batch has only bytes, a count and a sequence id."""
        self.count = len(self.rows)
        first = self.extras.get(0) if self.extras else None
        self.deliver_at_ms = first.deliver_at_ms if first is not None else 0
        self.batched = batched and not self.deliver_at_ms
        if self.batched:
            self._build_batch(producer_name, now_ms, compression)
        else:
            self._build_single(first or Extras(), producer_name, now_ms, compression)
        if self.schema_version:
            self.entry = with_schema_version(self.entry, self.schema_version)
        self.size = len(self.entry)
        self.rows = []
        self.extras = None

    def _build_single(
        self, extras: Extras, producer_name: str, now_ms: int, compression: Compression
    ) -> None:
        value, key, self.sequence, slot = self.rows[0]
        self.entry = build_single(
            value,
            key,
            self.sequence,
            producer_name,
            now_ms,
            properties=extras.properties,
            event_time_ms=extras.event_time_ms,
            null_value=extras.null_value,
            deliver_at_ms=extras.deliver_at_ms,
            compression=compression,
            hash_range=(slot, slot),
            slot=self.slot,
        )

    def _build_batch(self, producer_name: str, now_ms: int, compression: Compression) -> None:
        batch = MessageBatch()
        values, keys, sequences, slots = zip(*self.rows, strict=True)
        added = 0
        for index, extras in (self.extras or {}).items():
            batch.add_many(values[added:index], keys[added:index], sequences[added:index])
            batch.add(
                values[index],
                keys[index],
                sequences[index],
                extras.properties,
                extras.event_time_ms,
                null_value=extras.null_value,
            )
            added = index + 1
        batch.add_many(values[added:], keys[added:], sequences[added:])
        self.sequence = batch.highest_sequence_id
        hash_range = min(slots), max(slots)
        batch.sample_key = sample_key(keys[sample_index(self.sequence, len(keys))], keys[0])
        self.entry = batch.build(producer_name, now_ms, compression, hash_range, self.slot)

    def messages(self) -> list[tuple[Row, Extras | None]]:
        """The messages of a built entry, to be routed anew: the bucket hash of each row is 0."""
        columns = decode_columns(self.entry, sys.maxsize)
        found: list[tuple[Row, Extras | None]] = []
        for index in range(columns.count):
            value = columns.values[index]
            properties = columns.properties[index] if columns.properties else None
            event_time = columns.event_times[index] if columns.event_times else 0
            unusual = value is None or properties or event_time or self.deliver_at_ms
            extras = None
            if unusual:
                extras = Extras(properties or None, event_time, value is None, self.deliver_at_ms)
            found.append(((value or b"", columns.keys[index], columns.sequence_ids[index], 0), extras))
        return found


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


class OpenBucket:
    """One bucket of a segment, with the batch that messages are added to."""

    __slots__ = ("batch", "batcher", "fill", "slot")

    def __init__(self, batcher: SegmentBatcher, slot: int) -> None:
        self.batcher = batcher
        self.fill = BucketFill(batcher.limits)
        self.slot = slot
        """First hash of the bucket, the stamp of messages without a key."""
        self.batch: Outgoing | None = None


class SegmentBatcher:
    """The open batches of one segment; `room` messages and `bytes_left` still fit before all must close."""

    __slots__ = ("_splits", "buckets", "bytes_left", "limits", "opened", "owner", "room")

    def __init__(self, splits: Sequence[int], limits: Batching, owner: Any = None) -> None:
        self._splits = tuple(splits)
        self.limits = limits
        self.owner = owner
        """The producer of the segment."""
        self.buckets = tuple(OpenBucket(self, bucket.start) for bucket in bucket_ranges(self._splits))
        self.opened: dict[OpenBucket, Outgoing] = {}
        """The open batches, the oldest first."""
        self.room = limits.max_messages
        self.bytes_left = limits.max_bytes

    def bucket_for(self, slot: int) -> OpenBucket:
        """The bucket that a bucket hash lies in."""
        return self.buckets[bisect_right(self._splits, slot)]

    def begin(self, bucket: OpenBucket, now: float) -> Outgoing:
        """Open a batch in a bucket that has none."""
        batch = bucket.batch = self.opened[bucket] = Outgoing(now)
        return batch

    def add(self, batch: Outgoing, row: Row, size: int, extras: Extras | None = None) -> bool:
        """Add one message to an open batch; return whether a limit is reached, so that batches must close."""
        if extras is not None:
            if batch.extras is None:
                batch.extras = {}
            batch.extras[len(batch.rows)] = extras
        batch.rows.append(row)
        self.room = room = self.room - 1
        self.bytes_left = left = self.bytes_left - size
        return room <= 0 or left <= 0

    @property
    def oldest_at(self) -> float | None:
        """When the oldest open batch was begun; None when no batch is open."""
        return next((batch.begun_at for batch in self.opened.values()), None)

    def take(self) -> list[Outgoing]:
        """Close all open batches and return them in the order they must be sent."""
        taken = list(self.opened.values())
        for bucket in self.opened:
            bucket.batch = None
        self.opened.clear()
        self.room = self.limits.max_messages
        self.bytes_left = self.limits.max_bytes
        # Sequence ids within a batch only rise: a producer sends a message with a smaller one by itself.
        taken.sort(key=lambda batch: batch.rows[-1][2])
        return taken


def sample_index(sequence_id: int, count: int) -> int:
    """The message of a batch whose key is its sample, chosen as if at random by the highest sequence id.

    The first message is no fair sample: an application that sends its keys in turns may begin every batch
    with the same one.
    """
    return (sequence_id * 0x9E3779B1 >> 7) % count


def sample_key(key: str | bytes | None, first: str | bytes | None) -> bytes | None:
    """The key of a sample as the metadata carries it; None if it is the first key, or too long."""
    if key == first:
        return None
    sample = b"" if key is None else key.encode() if isinstance(key, str) else key
    return sample if len(sample) <= SAMPLE_KEY_BYTES_MAX else None


def message_size(value: bytes, key: str | bytes | None) -> int:
    """The size of a message as the limits of a batch count it."""
    return len(value) + (len(key) if key is not None else 0) + MESSAGE_OVERHEAD_BYTES
