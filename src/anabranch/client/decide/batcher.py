"""Which messages share an entry, and when entries are due: the decisions of a producer for one segment.

Each bucket of the segment has one open batch, and a batch never mixes buckets. Limits count over all open
batches of the segment; when one is reached, all of them close together and leave in the order of their
highest sequence ids, because the broker recognises repeated entries by a number that must only rise. Knows
nothing of connections, timers or futures: time is an argument.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch.client.options import Batching
from anabranch.model.hashing import bucket_ranges
from anabranch.protocol.batches import Compression, MessageBatch, build_single, decode_columns

MESSAGE_OVERHEAD_BYTES = 24
"""About what a header adds to a message inside a batch; the limits need no more precision."""


class Extras(NamedTuple):
    """What most messages do not have."""

    properties: Mapping[str, str] | None = None
    event_time_ms: int = 0
    null_value: bool = False
    deliver_at_ms: int = 0
    """When set, the message travels alone."""


Row = tuple[bytes, str | bytes | None, int, int]
"""Value, key, sequence id and bucket hash of one message."""

StoredAt = tuple[int, int, int]
"""Segment, ledger and entry where a batch was stored; -1 where the broker did not say."""

OPEN, STORED, FAILED, MOVED = range(4)


class Outgoing:
    """Messages of one bucket on their way to be one entry; first rows, then bytes, then an outcome.

    When a segment is sealed, messages move to batches of its successors: `moved` then says for each message
    where it went, so that whoever waits for it can follow.
    """

    __slots__ = (
        "batched",
        "begun_at",
        "count",
        "deliver_at_ms",
        "entry",
        "error",
        "extras",
        "judged",
        "moved",
        "place",
        "rows",
        "seen",
        "sequence",
        "size",
        "slot",
        "state",
        "trackers",
        "tried",
        "waiters",
    )

    def __init__(self, begun_at: float) -> None:
        self.begun_at = begun_at
        self.rows: list[Row] = []
        self.extras: dict[int, Extras] | None = None
        self.entry = b""
        self.batched = True
        """Whether the entry is a batch, also of one message."""
        self.count = 0
        self.deliver_at_ms = 0
        self.judged = False
        """Whether its one message may be stored already; it travels alone, so that the broker can tell."""
        self.slot: int | None = None
        """Where on the ring that message belongs, if it has no key to tell."""
        self.sequence = -1
        self.size = 0
        self.state = OPEN
        self.place: StoredAt = (-1, -1, -1)
        self.error: Exception | None = None
        self.seen = False
        self.moved: Sequence[tuple[Outgoing, int]] = ()
        self.tried = False
        """Whether the entry was ever sent, so that it may be stored without our knowing."""
        self.waiters: list[tuple[Any, Callable[..., object], Any]] | None = None
        self.trackers: list[Any] | None = None

    def build(self, producer_name: str, now_ms: int, compression: Compression, batched: bool) -> None:
        """Turn the rows into an entry; from then on the batch only has bytes, a count and a sequence id."""
        rows = self.rows
        self.count = len(rows)
        extras = self.extras or {}
        first = extras.get(0)
        self.deliver_at_ms = first.deliver_at_ms if first is not None else 0
        self.batched = batched and not self.deliver_at_ms
        if not self.batched:
            value, key, self.sequence, slot = rows[0]
            more = first or Extras()
            self.entry = build_single(
                value,
                key,
                self.sequence,
                producer_name,
                now_ms,
                properties=more.properties,
                event_time_ms=more.event_time_ms,
                null_value=more.null_value,
                deliver_at_ms=more.deliver_at_ms,
                compression=compression,
                hash_range=(slot, slot),
                slot=self.slot,
            )
        else:
            batch = MessageBatch()
            values, keys, sequences, slots = zip(*rows, strict=True)
            if extras:
                for index, (value, key, sequence, _) in enumerate(rows):
                    more = extras.get(index) or Extras()
                    batch.add(
                        value,
                        key,
                        sequence,
                        more.properties,
                        more.event_time_ms,
                        null_value=more.null_value,
                    )
            else:
                batch.add_many(values, keys, sequences)
            self.sequence = batch.highest_sequence_id
            stamp = (min(slots), max(slots))
            self.entry = batch.build(producer_name, now_ms, compression, stamp, self.slot)
        self.size = len(self.entry)
        self.rows = []
        self.extras = None

    def messages(self, limit: int) -> list[tuple[Row, Extras | None]]:
        """The messages of a built entry again, with bucket hash 0: they are about to get another bucket."""
        columns = decode_columns(self.entry, limit)
        found: list[tuple[Row, Extras | None]] = []
        for index in range(columns.count):
            value = columns.values[index]
            properties = columns.properties[index] if columns.properties else None
            event_time = columns.event_times[index] if columns.event_times else 0
            unusual = value is None or properties or event_time or self.deliver_at_ms
            extras = (
                Extras(properties or None, event_time, value is None, self.deliver_at_ms) if unusual else None
            )
            found.append(((value or b"", columns.keys[index], columns.sequence_ids[index], 0), extras))
        return found


@dataclass(slots=True)
class BucketFill:
    """What a producer's batches for one bucket have held so far; how full they are is what buckets cost."""

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
    """One bucket of a segment as messages are added to it."""

    __slots__ = ("batch", "batcher", "slot")

    def __init__(self, batcher: SegmentBatcher, slot: int) -> None:
        self.batcher = batcher
        self.slot = slot
        """First hash of the bucket, the stamp of messages without a key."""
        self.batch: Outgoing | None = None


class SegmentBatcher:
    """The open batches of one segment.

    `room` and `bytes_left` say what still fits before the open batches must close; a producer that adds rows
    by itself on its hot path keeps them up to date.
    """

    __slots__ = ("_splits", "bytes_left", "lanes", "limits", "opened", "owner", "room")

    def __init__(self, splits: Sequence[int], limits: Batching, owner: Any = None) -> None:
        self._splits = tuple(splits)
        self.limits = limits
        self.owner = owner
        self.lanes = tuple(OpenBucket(self, bucket.start) for bucket in bucket_ranges(self._splits))
        self.opened: list[OpenBucket] = []
        """Lanes with an open batch."""
        self.room = limits.max_messages
        self.bytes_left = limits.max_bytes

    def bucket_of(self, slot: int) -> int:
        """The number of the bucket that a bucket hash lies in."""
        return bisect_right(self._splits, slot)

    def lane_for(self, slot: int) -> OpenBucket:
        """The lane of a bucket hash."""
        return self.lanes[bisect_right(self._splits, slot)]

    def begin(self, lane: OpenBucket, now: float) -> Outgoing:
        """Open a batch in a lane that has none."""
        batch = lane.batch = Outgoing(now)
        self.opened.append(lane)
        return batch

    def fits(self, size: int) -> bool:
        """Whether a message of this size may still join; an empty batcher takes any."""
        return not self.opened or size <= self.bytes_left

    def add(
        self, lane: OpenBucket, row: Row, size: int, now: float, extras: Extras | None = None
    ) -> Outgoing:
        """Add one message; the caller closes the batches when `full` says so."""
        batch = lane.batch or self.begin(lane, now)
        if extras is not None:
            if batch.extras is None:
                batch.extras = {}
            batch.extras[len(batch.rows)] = extras
        batch.rows.append(row)
        self.room -= 1
        self.bytes_left -= size
        return batch

    @property
    def full(self) -> bool:
        """Whether a limit is reached."""
        return self.room <= 0 or self.bytes_left <= 0

    @property
    def due_at(self) -> float | None:
        """When the oldest open batch has waited long enough; None when nothing is open."""
        if not self.opened:
            return None
        batch = self.opened[0].batch
        assert batch is not None
        return batch.begun_at + self.limits.max_delay

    def take(self) -> list[Outgoing]:
        """Close all open batches and return them in the order they must be sent."""
        taken: list[Outgoing] = []
        for lane in self.opened:
            assert lane.batch is not None
            taken.append(lane.batch)
            lane.batch = None
        self.opened.clear()
        self.room = self.limits.max_messages
        self.bytes_left = self.limits.max_bytes
        if len(taken) > 1:
            taken.sort(key=_highest)
        return taken


def _highest(batch: Outgoing) -> int:
    # Sequence ids within a batch only rise: a producer sends a message with a smaller one by itself.
    return batch.rows[-1][2]


def message_size(value: bytes, key: str | bytes | None) -> int:
    """What a message counts against the limits of a batch."""
    return len(value) + (len(key) if key is not None else 0) + MESSAGE_OVERHEAD_BYTES
