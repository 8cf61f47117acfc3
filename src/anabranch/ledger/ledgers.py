"""One ledger of a log in memory, and the batch of entries that the next commit adds to it.

A ledger is written by one process only: the first append after a restart starts a new ledger. This module
knows offsets and rows, but writes no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from anabranch.errors import ServerError
from anabranch.ledger.cache import CachedTail
from anabranch.ledger.format.catalog import LedgerRecord
from anabranch.ledger.format.commits import Group
from anabranch.ledger.format.records import (
    HEAD_BYTES,
    OFFSET_MAX,
    Rows,
    RowStart,
    checksum,
    extend_checksum,
    seed,
)
from anabranch.ledger.storage import AppendDone, Entry
from anabranch.model.ids import Position

FOLDER = "ledgers"

_JOIN_BYTES = 16 * 1024
"""A batch joins its records into one buffer only if their mean size is below this."""


class LedgerStart(NamedTuple):
    """The id of a ledger and the coordinates of its first entry."""

    id: int
    first_ordinal: int
    first_index: int
    base_ms: int


class Ledger:
    """One ledger in memory, which knows where each durable entry lies in its files."""

    __slots__ = (
        "_folder",
        "base_ms",
        "dropped",
        "first_index",
        "first_ordinal",
        "flushed",
        "id",
        "owner",
        "queued_bytes",
        "queued_entries",
        "queued_messages",
        "queued_ms",
        "rows",
        "rows_checksum",
        "tail",
        "waiting",
        "waiting_rows",
    )

    def __init__(self, log: int, folder: str, tail: CachedTail, start: LedgerStart) -> None:
        self.id, self.first_ordinal, self.first_index, self.base_ms = start
        self.owner = seed(log, self.id)
        self._folder = folder
        self.tail = tail
        self.rows = Rows()
        self.rows_checksum = 0
        # Totals over all appended entries, durable or not, which give the place of the next entry.
        self.queued_entries = 0
        self.queued_messages = 0
        self.queued_bytes = 0
        self.queued_ms = 0
        self.flushed = 0
        """The number of entries that the files hold."""
        self.waiting: list[bytes] = []
        self.waiting_rows: list[bytes] = []
        self.dropped = False

    @property
    def data_file(self) -> str:
        return f"{FOLDER}/{self._folder}/{self.id:08d}.data"

    @property
    def index_file(self) -> str:
        return f"{FOLDER}/{self._folder}/{self.id:08d}.index"

    @property
    def entries(self) -> int:
        return len(self.rows.ends)

    @property
    def end_ordinal(self) -> int:
        return self.first_ordinal + len(self.rows.ends)

    @property
    def end_index(self) -> int:
        return self.first_index + (self.rows.indexes[-1] if self.rows.indexes else 0)

    @property
    def size_bytes(self) -> int:
        """The length of the data file once everything is written."""
        return self.rows.ends[-1] if self.rows.ends else 0

    @property
    def data_bytes(self) -> int:
        """The bytes of the entries alone, without the heads of their records."""
        return self.size_bytes - HEAD_BYTES * len(self.rows.ends)

    def has_room(
        self, size: int, count: int, timestamp_ms: int, bytes_max: int, age_max_ms: int = OFFSET_MAX
    ) -> bool:
        """Return whether the ledger can take another record of `size` bytes. An empty ledger takes any."""
        return not self.queued_entries or (
            self.queued_bytes + size <= bytes_max
            and self.queued_messages + count <= OFFSET_MAX
            and timestamp_ms - self.base_ms <= min(age_max_ms, OFFSET_MAX)
        )

    def start_of(self, entry: int) -> int:
        """Return the offset of an entry's record in the data file."""
        return self.rows.ends[entry - 1] if entry else 0

    def index_of(self, entry: int) -> int:
        """Return the index of an entry's first message."""
        return self.first_index + (self.rows.indexes[entry - 1] if entry else 0)

    def count_of(self, entry: int) -> int:
        """Return the number of messages in an entry."""
        indexes = self.rows.indexes
        return indexes[entry] - (indexes[entry - 1] if entry else 0)

    @property
    def end(self) -> RowStart:
        """The end of the durable entries."""
        return self.rows.end(RowStart())

    def extend(self, rows: Rows, encoded_rows: bytes, records: Sequence[bytes]) -> None:
        """Add entries that are durable in the journal. They wait to be written to the files."""
        self.rows.extend(rows)
        self.rows_checksum = extend_checksum(self.rows_checksum, encoded_rows)
        self.waiting.extend(records)
        self.waiting_rows.append(encoded_rows)

    def unwritten(self, start: int, end: int) -> bytes:
        """The bytes of the data file that still have to be written."""
        parts = []
        at = self.start_of(self.flushed)
        for buffer in self.waiting:
            beyond = at + len(buffer)
            if beyond > start:
                parts.append(buffer[max(start - at, 0) : end - at])
            at = beyond
            if at >= end:
                break
        return b"".join(parts)

    def record(self) -> LedgerRecord:
        return LedgerRecord(
            self.id,
            self.first_ordinal,
            self.first_index,
            self.base_ms,
            self.entries,
            self.end_index - self.first_index,
            self.size_bytes,
            self.rows.times[-1] if self.rows.times else 0,
            self.rows_checksum,
        )


class BatchOwner(Protocol):
    """The log that a batch belongs to."""

    def batch_taken(self) -> None:
        """React to a commit taking the open batch: the next append begins another one."""

    def committed(self, batch: Batch, closed: Closed) -> None:
        """Take over the batch, which is durable now."""

    def answer(self, batch: Batch) -> None:
        """Call back each caller that appended to a batch which the log has taken over."""

    def rejected(self, batch: Batch, error: ServerError) -> None:
        """Pass the error to each caller that appended to the batch, which will not become durable."""

    def notify(self) -> None:
        """Call the watchers of the log."""


class Closed(NamedTuple):
    """A batch as the commit stores it. The records are buffers to write."""

    group: Group
    rows: bytes
    records: Sequence[bytes]


class Batch:
    """Entries of one ledger that the next commit makes durable. The log's `append` fills the columns."""

    __slots__ = (
        "_entries",
        "counts",
        "done",
        "indexes",
        "ledger",
        "log",
        "owner",
        "pieces",
        "producers",
        "rows",
        "stamps_ms",
        "start",
    )

    def __init__(self, log: int, owner: BatchOwner, ledger: Ledger) -> None:
        self.log = log
        self.owner = owner
        self.ledger = ledger
        self.start = RowStart(
            ledger.queued_entries, ledger.queued_bytes, ledger.queued_messages, ledger.queued_ms
        )
        self.rows = Rows()
        self.pieces: list[bytes] = []
        """The head and data of each record, alternating."""
        self.indexes: list[int] = []
        self.counts: list[int] = []
        self.stamps_ms: list[int] = []
        self.done: list[AppendDone] = []
        self.producers: dict[str, int] = {}
        self._entries: list[Entry] | None = None

    def close(self) -> Closed:
        """Return the batch as the commit stores it. No entry may be added afterwards."""
        ledger, rows, pieces, count = self.ledger, self.rows, self.pieces, len(self.done)
        size_bytes = rows.ends[-1] - self.start.size_bytes
        encoded_rows = rows.encode()
        group = Group(
            self.log,
            ledger.id,
            self.start,
            count,
            size_bytes,
            checksum(encoded_rows),
            ledger.first_ordinal,
            ledger.first_index,
            ledger.base_ms,
            self.stamps_ms[-1],
            self.producers,
        )
        records = pieces if size_bytes >= _JOIN_BYTES * count else [b"".join(pieces)]
        return Closed(group, encoded_rows, records)

    def entries(self) -> list[Entry]:
        """Return the stored entries, which the first call creates. No entry may be added afterwards."""
        if self._entries is None:
            self._entries = self._make_entries()
        return self._entries

    def _make_entries(self) -> list[Entry]:
        # Iterators implemented in C halve the cost per entry.
        ledger, first, count = self.ledger, self.start.entries, len(self.done)
        numbers = zip(repeat(ledger.id), range(first, first + count), strict=False)
        ordinal = ledger.first_ordinal + first
        columns = zip(
            map(_make_tuple, repeat(Position), numbers),
            range(ordinal, ordinal + count),
            self.indexes,
            self.counts,
            self.stamps_ms,
            self.pieces[1::2],
            strict=True,
        )
        return list(map(_make_tuple, repeat(Entry), columns))


_make_tuple: Callable[..., Any] = tuple.__new__
