"""Opens a staged entry and makes new entries of its rows, when they cannot be published as they are.

Each new entry holds rows of one bucket, with the numbers that `republishing` gives them. Knows no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anabranch.client.bulk.entry_sender import ReadyEntry
from anabranch.clock import SystemClock
from anabranch.model.hashing import key_hash, segment_hash
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX, Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.restamping import entry_metadata
from anabranch.protocol.varints import encode_varint
from anabranch.spark.decide.sink.republishing import SLOT_MASK, RoutedRows, RowJudge, Stamp

CLOCK = SystemClock()
_SEQUENCE_TAG = b"\x40"


class OpenedEntry:
    """The rows of a staged entry, to be published by the producer `name`, the first one as number `first`."""

    def __init__(self, entry: bytes, stamp: Stamp, name: str, first: int) -> None:
        self._name = name
        self._first = first
        self._columns = decode_columns(entry, UNCOMPRESSED_BYTES_MAX)
        self._compression = Compression(entry_metadata(entry).compression)
        self.hashes = [stamp.keyless_hash if key is None else key_hash(key) for key in self._columns.keys]

    def cut(self, part: RoutedRows, judge: RowJudge) -> Iterator[ReadyEntry]:
        """Yield the rows of a part that a segment may lack."""
        numbers = [self._first + number for number in part.numbers]
        slots = [segment_hash(self.hashes[row]) for row in part.rows]
        for chosen in judge.entries(numbers, slots):
            yield self._entry([part.rows[at] for at in chosen], [numbers[at] for at in chosen])

    def _entry(self, rows: Sequence[int], numbers: Sequence[int]) -> ReadyEntry:
        keys, batch = self._columns.keys, MessageBatch()
        messages = b"".join(map(self._message, rows, numbers))
        batch.add_encoded(messages, len(rows), numbers[-1], keys[rows[0]])
        slots = [self.hashes[row] & SLOT_MASK for row in rows]
        # A broker judges the only message of an entry by its key, or by the slot that the entry names.
        slot = self.hashes[rows[0]] >> 16 if len(rows) == 1 and keys[rows[0]] is None else None
        hash_range = min(slots), max(slots)
        data = batch.build(self._name, CLOCK.wall_ms(), self._compression, hash_range, slot)
        return ReadyEntry(data, len(rows), numbers[-1], numbers[0])

    def _message(self, row: int, number: int) -> bytes:
        """A staged message with its number; the fields of a header may come in any order."""
        data, start = self._columns.data, self._columns.starts[row]
        header_end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        header = data[start + 4 : header_end] + _SEQUENCE_TAG + encode_varint(number)
        end = self._columns.starts[row + 1] if row + 1 < len(self._columns.starts) else len(data)
        return len(header).to_bytes(4, "big") + header + data[header_end:end]
