"""A batch of messages on its way out: first rows, then the bytes of an entry, then an outcome. Pure.

`batcher` decides which messages share a batch; `produce.sending` sends it.

Example: a batch has rows with the sequence ids 7, 9 and 12. Building turns them into one entry with a count
of 3 and the sequence id 12. The broker stores it as entry 20 of ledger 5 in segment 3, so the message at
index 1 has the id (3, 5, 20, 1 of 3). If the segment is sealed first, `moved` says for each index which batch
of a successor has the message now, and at which index.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from anabranch.client.decide.producing.sample_keys import sample_index, sample_key
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.compression import Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.restamping import restamped
from anabranch.protocol.schema_stamps import with_schema_version
from anabranch.protocol.singles import build_single
from anabranch.speedups import PackedRows


class Extras(NamedTuple):
    """The rarely used parts of a message."""

    properties: Mapping[str, str] | None = None
    event_time_ms: int = 0
    null_value: bool = False
    deliver_at_ms: int = 0
    """When set, the message travels alone."""
    report: Any = None
    """Tells interceptors the outcome of the message."""


Row = tuple[bytes, str | bytes | None, int, int]
"""Value, key, sequence id and bucket hash of one message."""

StoredAt = tuple[int, int, int]
"""Segment, ledger and entry of a stored batch; -1 where the broker did not say."""

OPEN, STORED, FAILED, MOVED = range(4)


class Places(NamedTuple):
    """The new places of messages: a batch and the index in it for each of them.

    Two columns, because thousands of pairs would make the next collection of garbage a long pause.
    """

    batches: list[Outgoing]
    indexes: list[int]

    def of(self, index: int) -> tuple[Outgoing, int]:
        return self.batches[index], self.indexes[index]


@dataclass(slots=True, eq=False)
class Outgoing:
    """Messages of one bucket that become one entry: first rows, then bytes, then an outcome.

    When a segment is sealed, its messages move to batches of its successors: `moved` then holds their new
    places, so that their futures can follow.
    """

    begun_at: float
    rows: list[Row] = field(default_factory=lambda: PackedRows())
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
    moved: Places | None = None
    tried: bool = False
    """Whether the entry was ever sent, so that it may be stored without the producer's knowing."""
    unanswered_chunks: int = 0
    """Chunks without a receipt, if the entry was too large and is sent in several."""
    follows: bool = False
    """Whether the entry closed together with the one before it. Their sequence ids may alternate, so they
    leave together: with one of them stored, the broker takes a repetition of the other for a duplicate."""
    waiters: list[tuple[Any, Callable[..., object], Any]] | None = None
    trackers: list[Any] | None = None

    # Rows are bytes of the entry already where the compiled form added them (`PackedRows`), so building joins
    # them with the metadata instead of encoding a thousand messages at once. The rows are dropped: from here
    # on the entry is the only copy, and `messages` decodes it in the rare case that it has to be routed
    # again.
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

    def use_schema_version(self, version: bytes) -> None:
        """Stamp a built entry with the version that its segment gave the schema, if it gave one."""
        if not version or version == self.schema_version:
            return

        def change(metadata: pb.MessageMetadata) -> None:
            metadata.schema_version = version

        self.entry, self.schema_version = restamped(self.entry, change), version

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
        encoded = self._encoded()
        hash_range = self._add_rows(batch) if encoded is None else _add_encoded(batch, self.rows, encoded)
        self.sequence = batch.highest_sequence_id
        sample = self.rows[sample_index(self.sequence, len(self.rows))]
        batch.sample_key = sample_key(sample[1], self.rows[0][1])
        self.entry = batch.build(producer_name, now_ms, compression, hash_range, self.slot)

    def _encoded(self) -> tuple[bytes, bytes | None, int, int] | None:
        """Messages, their sizes, lowest and highest bucket hash, if the rows were kept as bytes."""
        rows: Any = self.rows
        return None if self.extras or type(rows) is list else rows.encoded()

    def _add_rows(self, batch: MessageBatch) -> tuple[int, int]:
        """Add the rows and their extras to a batch; return the lowest and the highest bucket hash."""
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
        return min(slots), max(slots)

    def messages(self) -> tuple[Sequence[Row], Sequence[Extras | None] | None]:
        """Decode a built entry that has to be routed again: its messages, and their extras if there are any.

        The bucket hash of each row is 0.
        """
        columns = decode_columns(self.entry, sys.maxsize)
        values = [value or b"" for value in columns.values]
        rows: list[Row] = list(zip(values, columns.keys, columns.sequence_ids, repeat(0)))
        if not (columns.properties or columns.event_times or self.deliver_at_ms or None in columns.values):
            return rows, None
        found: list[Extras | None] = []
        for index in range(columns.count):
            value = columns.values[index]
            properties = columns.properties[index] if columns.properties else None
            event_time = columns.event_times[index] if columns.event_times else 0
            unusual = value is None or properties or event_time or self.deliver_at_ms
            extras = None
            if unusual:
                extras = Extras(properties or None, event_time, value is None, self.deliver_at_ms)
            found.append(extras)
        return rows, found


def _add_encoded(
    batch: MessageBatch, rows: list[Row], encoded: tuple[bytes, bytes | None, int, int]
) -> tuple[int, int]:
    """Add rows that the compiled encoder has encoded; return the lowest and the highest bucket hash."""
    messages, sizes, low, high = encoded
    batch.add_encoded(messages, len(rows), rows[-1][2], rows[0][1], sizes)
    return low, high
