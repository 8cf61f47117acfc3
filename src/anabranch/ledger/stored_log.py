"""The durable state of one log: its ledgers, cursors, seal and sequence ids.

Recovery builds this state from the catalog and the journal; afterwards each commit changes it. This module
knows nothing of the journal, of entries that are not durable yet, or of callers that wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.ledger.cache import Cache, CachedTail
from anabranch.ledger.cursors import CursorJournal, LogCursors
from anabranch.ledger.format.catalog import CursorRecord, LogRecord
from anabranch.ledger.format.commits import Group, piece_records, pieces_of
from anabranch.ledger.format.extent import LedgerExtent
from anabranch.ledger.format.index_head import IndexHead, encode_index_head
from anabranch.ledger.format.records import Rows, RowStart
from anabranch.ledger.ledger_files import LedgerReader, WriteBehind
from anabranch.ledger.ledgers import Closed, Ledger, LedgerStart
from anabranch.ledger.storage import Entry, StoredSequences
from anabranch.model.acks import AckSet
from anabranch.model.ids import Position
from anabranch.model.inheritance import Pieces
from anabranch.model.log_names.side_logs import folder_of_log

PRODUCERS_MAX = 10_000
"""How many producer names a log remembers. Beyond that it drops the name that was unused for longest."""


class LedgerFiles(NamedTuple):
    """The objects through which all logs of one storage access their ledger files."""

    behind: WriteBehind
    cache: Cache
    reader: LedgerReader


class StoredLog:
    """The durable state of one log."""

    __slots__ = (
        "_files",
        "_folder",
        "_producers",
        "cursors",
        "extent",
        "id",
        "inherited",
        "name",
        "sealed",
        "tail",
    )

    def __init__(self, id_: int, name: str, files: LedgerFiles, journal: CursorJournal) -> None:
        self.id = id_
        self.name = name
        self.extent = LedgerExtent()
        self.cursors = LogCursors(id_, name, journal)
        self.tail = CachedTail(files.cache)
        self.sealed = False
        self.inherited: Pieces = ()
        self._files = files
        self._folder = folder_of_log(name)
        self._producers: dict[str, int] = {}

    @property
    def sequences(self) -> StoredSequences:
        return StoredSequences(self._producers, self.inherited)

    def begin_ledger(self, start: LedgerStart) -> Ledger:
        """Return a new ledger, whose files do not exist yet."""
        ledger = self._make_ledger(start)
        ledger.waiting_rows.append(self.index_head(ledger))
        return ledger

    def _make_ledger(self, start: LedgerStart) -> Ledger:
        return Ledger(self.id, self._folder, self.tail, start)

    def index_head(self, ledger: Ledger) -> bytes:
        """Return the bytes that precede the rows in a ledger's index file."""
        return encode_index_head(
            IndexHead(self.id, self.name, ledger.id, ledger.first_ordinal, ledger.first_index, ledger.base_ms)
        )

    def store(self, ledger: Ledger, rows: Rows, closed: Closed) -> None:
        """Take over entries that a commit made durable."""
        group, encoded_rows, records = closed
        self._extend(ledger, rows, encoded_rows, records)
        self._files.behind.add(ledger, group.size_bytes)
        self.extent.last_timestamp_ms = group.last_ms
        producers = self._producers
        for producer, sequence in group.producers.items():
            producers.pop(producer, None)
            producers[producer] = sequence
        while len(producers) > PRODUCERS_MAX:
            del producers[next(iter(producers))]

    def _extend(self, ledger: Ledger, rows: Rows, encoded_rows: bytes, records: Sequence[bytes]) -> None:
        extent = self.extent
        if not extent.ledgers or extent.ledgers[-1] is not ledger:
            extent.add(ledger)
        ledger.extend(rows, encoded_rows, records)
        extent.advance()

    def cache(self, entries: list[Entry], size_bytes: int) -> None:
        """Keep newly stored entries in memory for readers at the end of the log."""
        self.tail.extend(entries, size_bytes)
        self._files.cache.shrink()

    def drop_below(self, ordinal: int) -> list[Ledger]:
        """Drop the whole ledgers below `ordinal`. The caller deletes their files."""
        dropped = self.extent.drop_below(ordinal)
        for ledger in dropped:
            ledger.dropped = True
        self._files.reader.ahead.forget([ledger.id for ledger in dropped])
        return dropped

    def drop_all(self) -> list[Ledger]:
        """Drop all ledgers and cursors of a deleted log. The caller deletes the files."""
        self.cursors.log_deleted()
        dropped = self.drop_below(self.extent.next_ordinal)
        self.tail.drop()
        return dropped

    def record(self) -> LogRecord:
        """Return the catalog's record of the log. Its acknowledgements may be newer than the last commit."""
        extent = self.extent
        return LogRecord(
            self.id,
            self.name,
            self.sealed,
            extent.first_ordinal,
            extent.first_index,
            extent.end.ledger,
            extent.end.entry,
            extent.index_floor,
            extent.last_timestamp_ms,
            [ledger.record() for ledger in extent.ledgers],
            [
                CursorRecord(name, cursor.acks.encode(), dict(cursor.properties), cursor.note)
                for name, cursor in self.cursors.items()
            ],
            dict(self._producers),
            piece_records(self.inherited),
        )

    def restore(self, record: LogRecord) -> Sequence[Ledger]:
        """Take over a catalog's record. The caller fills in the rows of the returned ledgers."""
        extent = self.extent
        extent.first_ordinal = extent.next_ordinal = record.first_ordinal
        extent.first_index = extent.next_index = record.first_index
        extent.end = Position(record.end_ledger, record.end_entry)
        extent.last_timestamp_ms = record.last_ms
        self.sealed = record.sealed
        self._producers = dict(record.producers)
        self.inherited = pieces_of(record.inherited)
        for cursor in record.cursors:
            acks = AckSet.decode(cursor.acks)
            self.cursors.restore(cursor.name, acks, cursor.properties, cursor.note)
        for kept in record.ledgers:
            start = LedgerStart(kept.id, kept.first_ordinal, kept.first_index, kept.base_ms)
            extent.add(self._make_ledger(start))
        return extent.ledgers

    def replay_group(self, group: Group, encoded_rows: bytes, records: bytes) -> int:
        """Take over entries from a commit of an earlier process.

        Entries before the group that no file holds count as damaged from now on; returns how many there are.
        A group that the log already holds has no effect.
        """
        extent = self.extent
        ledger = extent.ledgers[-1] if extent.ledgers else None
        lost = 0
        if ledger is None or ledger.id < group.ledger:
            if group.first_ordinal < extent.next_ordinal:
                # The log continued without this ledger, so its ordinals belong to other entries.
                return group.entries
            lost = self._fill_up_to(group)
            ledger = self.begin_ledger(
                LedgerStart(group.ledger, group.first_ordinal, group.first_index, group.base_ms)
            )
        if ledger.id != group.ledger or ledger.entries > group.start.entries:
            return 0
        if ledger.entries < group.start.entries:
            lost += self._fill(ledger, group.start)
        self.store(ledger, Rows.decode(encoded_rows), Closed(group, encoded_rows, [records]))
        return lost

    def _fill_up_to(self, group: Group) -> int:
        """Fill the ordinals before the group's ledger. The ledgers of these entries are unknown."""
        extent = self.extent
        missing = group.first_ordinal - extent.next_ordinal
        if not missing:
            return 0
        if extent.ledgers:
            ledger = extent.ledgers[-1]
        else:
            start = LedgerStart(group.ledger - 1, extent.next_ordinal, extent.next_index, group.base_ms)
            ledger = self.begin_ledger(start)
        end = ledger.end
        return self._fill(
            ledger, end._replace(entries=end.entries + missing, messages=end.messages + missing)
        )

    def _fill(self, ledger: Ledger, end: RowStart) -> int:
        """Add damaged entries to the ledger until it ends at `end`."""
        before = ledger.end
        rows = Rows.filled(before, end)
        size_bytes = end.size_bytes - before.size_bytes
        self._extend(ledger, rows, rows.encode(), [bytes(size_bytes)])
        self._files.behind.add(ledger, size_bytes)
        return len(rows)
