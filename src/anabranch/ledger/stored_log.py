"""The durable state of one log: its ledgers, cursors, seal and sequence ids.

Recovery builds this state from the catalog and the journal; afterwards each commit changes it. Knows nothing
of the journal, of entries that are not durable yet, or of callers that wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.ledger.cache import Cache, CachedTail
from anabranch.ledger.cursors import CursorJournal, LogCursors
from anabranch.ledger.format.catalog import CursorRecord, LogRecord
from anabranch.ledger.format.commits import Group, piece_records, pieces_of
from anabranch.ledger.format.extent import LedgerExtent
from anabranch.ledger.format.records import Rows
from anabranch.ledger.ledger_files import LedgerReader, WriteBehind
from anabranch.ledger.ledgers import Closed, Ledger, LedgerStart
from anabranch.ledger.storage import Entry, StoredSequences
from anabranch.model.acks import AckSet
from anabranch.model.ids import Position
from anabranch.model.inheritance import Pieces
from anabranch.model.names import TopicName

PRODUCERS_MAX = 10_000
"""Producer names whose sequence a log remembers; beyond it the log drops the name unused for longest."""


class LedgerFiles(NamedTuple):
    """The objects through which all logs of one storage reach their ledger files."""

    behind: WriteBehind
    cache: Cache
    reader: LedgerReader


class StoredLog:
    """The durable state of one log."""

    def __init__(self, id_: int, name: str, files: LedgerFiles, journal: CursorJournal) -> None:
        self.id = id_
        self.name = name
        self.extent = LedgerExtent()
        self.cursors = LogCursors(id_, name, journal)
        self.tail = CachedTail(files.cache)
        self.sealed = False
        self.inherited: Pieces = ()
        self._files = files
        self._folder = TopicName.parse(name).storage_name
        self._producers: dict[str, int] = {}

    @property
    def sequences(self) -> StoredSequences:
        return StoredSequences(self._producers, self.inherited)

    def make_ledger(self, start: LedgerStart) -> Ledger:
        return Ledger(self.id, self._folder, self.tail, start)

    def store(self, ledger: Ledger, rows: Rows, closed: Closed) -> None:
        """Take over entries that a commit made durable."""
        extent = self.extent
        group, encoded_rows, records = closed
        if not extent.ledgers or extent.ledgers[-1] is not ledger:
            extent.add(ledger)
        ledger.extend(rows, encoded_rows, records)
        self._files.behind.add(ledger, group.size_bytes)
        extent.advance()
        extent.last_timestamp_ms = group.last_ms
        producers = self._producers
        for producer, sequence in group.producers.items():
            producers.pop(producer, None)
            producers[producer] = sequence
        while len(producers) > PRODUCERS_MAX:
            del producers[next(iter(producers))]

    def cache(self, entries: list[Entry], size_bytes: int) -> None:
        """Keep newly stored entries in memory for readers at the end of the log."""
        self.tail.extend(entries, size_bytes)
        self._files.cache.shrink()

    def drop_below(self, ordinal: int) -> list[Ledger]:
        """Drop whole ledgers below `ordinal`; the caller deletes their files."""
        dropped = self.extent.drop_below(ordinal)
        for ledger in dropped:
            ledger.dropped = True
        self._files.reader.ahead.forget([ledger.id for ledger in dropped])
        return dropped

    def drop_all(self) -> list[Ledger]:
        """Drop all ledgers and cursors of a deleted log; the caller deletes the files."""
        self.cursors.log_deleted()
        dropped = self.drop_below(self.extent.next_ordinal)
        self.tail.drop()
        return dropped

    def record(self) -> LogRecord:
        """The catalog's record of the log; its acknowledgements may be newer than the last commit."""
        extent = self.extent
        return LogRecord(
            self.id,
            self.name,
            self.sealed,
            extent.first_ordinal,
            extent.first_index,
            extent.end.ledger,
            extent.end.entry,
            extent.last_timestamp_ms,
            [ledger.record() for ledger in extent.ledgers],
            [
                CursorRecord(name, cursor.acks.encode(), dict(cursor.properties))
                for name, cursor in self.cursors.items()
            ],
            dict(self._producers),
            piece_records(self.inherited),
        )

    def restore(self, record: LogRecord) -> Sequence[Ledger]:
        """Take over a catalog's record; the caller fills the rows of the returned ledgers in."""
        extent = self.extent
        extent.first_ordinal = extent.next_ordinal = record.first_ordinal
        extent.first_index = extent.next_index = record.first_index
        extent.end = Position(record.end_ledger, record.end_entry)
        extent.last_timestamp_ms = record.last_ms
        self.sealed = record.sealed
        self._producers = dict(record.producers)
        self.inherited = pieces_of(record.inherited)
        for cursor in record.cursors:
            self.cursors.restore(cursor.name, AckSet.decode(cursor.acks), cursor.properties)
        for kept in record.ledgers:
            start = LedgerStart(kept.id, kept.first_ordinal, kept.first_index, kept.base_ms)
            extent.add(self.make_ledger(start))
        return extent.ledgers

    def replay_group(self, group: Group, encoded_rows: bytes, records: bytes) -> None:
        """Take over entries from a commit of an earlier process."""
        extent = self.extent
        ledger = extent.ledgers[-1] if extent.ledgers else None
        if ledger is None or ledger.id != group.ledger:
            start = LedgerStart(group.ledger, group.first_ordinal, group.first_index, group.base_ms)
            ledger = self.make_ledger(start)
        if group.first_entry != ledger.entries or ledger.end_ordinal != extent.next_ordinal:
            raise CorruptDataError(
                f"{self.name}: the journal continues at {group.ledger}:{group.first_entry}, "
                f"which is not the end of the log"
            )
        self.store(ledger, Rows.decode(encoded_rows), Closed(group, encoded_rows, [records]))
