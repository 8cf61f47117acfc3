"""The open transaction of one batch: reads and changes of rows, and the frame of the record log for them."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from typing import Any, Protocol

from anabranch.errors import DamagedRecordError, MetadataError, NotFoundError, VersionConflictError
from anabranch.metadata import sqlite_rows
from anabranch.metadata.record_log import RecordLog
from anabranch.metadata.record_log_format import LoggedChange, RecordState, follow
from anabranch.metadata.sqlite_rows import Mark, RecordRow
from anabranch.metadata.store import ABSENT

log = logging.getLogger(__name__)


class WorkOwner(Protocol):
    """The thread that carries out a transaction."""

    @property
    def records(self) -> RecordLog: ...

    def session(self, work: Work) -> int:
        """Return the session of this process, which the transaction begins if there is none."""


class Work:
    """The operations of one transaction; used by the thread only."""

    def __init__(self, connection: sqlite3.Connection, owner: WorkOwner) -> None:
        self.connection = connection
        self.owner = owner
        self.changed: list[str] = []
        self.logged: list[LoggedChange] = []
        self.mark = Mark()
        self.session: int | None = None
        """The session that this transaction began."""
        self._log_end: int | None = None

    def row(self, sql: str, *values: object) -> Any:
        return self.connection.execute(sql, values).fetchone()

    def note(self, path: str) -> None:
        self.connection.execute("INSERT INTO change (path) VALUES (?)", (path,))
        self.changed.append(path)

    def read(self, path: str) -> RecordRow | None:
        """The record at `path`; a damaged row is replaced from the record log."""
        try:
            return sqlite_rows.read_row(self.connection, path)
        except DamagedRecordError:
            return self._heal(path)

    def put(self, path: str, value: bytes, expected: int | None, session: int | None) -> int:
        """Store a value and return its version; VersionConflictError if the old one is not `expected`."""
        before = self.read(path)
        version = _version(path, before, expected) + 1
        written = self._next_commit if session is None else 0
        sqlite_rows.write_row(self.connection, path, RecordRow(value, version, session, written))
        if session is None:
            self.logged.append(LoggedChange(path, written, version, value))
        elif before is not None and before.session is None:
            self.logged.append(LoggedChange(path, self._next_commit, ABSENT))
        self.note(path)
        return version

    def delete(self, path: str, expected: int | None) -> None:
        before = self.read(path)
        if before is None:
            raise NotFoundError(f"{path} does not exist")
        _version(path, before, expected)
        self.connection.execute("DELETE FROM node WHERE path = ?", (path,))
        if before.session is None:
            self.logged.append(LoggedChange(path, self._next_commit, ABSENT))
        self.note(path)

    def increment(self, path: str) -> int:
        try:
            number = sqlite_rows.read_sequence(self.connection, path)
        except DamagedRecordError:
            number = self._logged_sequence(path)
        sqlite_rows.write_sequence(self.connection, path, number + 1, self._next_commit)
        self.logged.append(LoggedChange(path, self._next_commit, number + 1, b"", True))
        return number

    def remove_sessions(self, where: str, *values: object) -> None:
        ids = [row[0] for row in self.connection.execute(f"SELECT id FROM session WHERE {where}", values)]
        for number in ids:
            for (path,) in self.connection.execute(
                "SELECT path FROM node WHERE session = ?", (number,)
            ).fetchall():
                self.connection.execute("DELETE FROM node WHERE path = ?", (path,))
                self.note(path)
            self.connection.execute("DELETE FROM session WHERE id = ?", (number,))

    def catch_up(self, records: RecordLog) -> None:
        """Apply the transaction of a process that died between its write to the log and its commit.

        Every transaction that writes begins so. Its process got no answer, so the change may happen now.
        A log that is missing or too short is written again.
        """
        self.mark = sqlite_rows.read_mark(self.connection)
        size = _size(records, self.mark)
        if size is None:
            self.rewrite_log(records)
        elif size > self.mark.ends:
            data = records.read(self.mark.ends, size - self.mark.ends)
            for frame, ends in follow(self.mark.file, data, self.mark.ends, self.mark.commits):
                for change in frame.changes:
                    sqlite_rows.write_change(self.connection, change)
                    if not change.sequence:
                        self.note(change.path)
                self.move_mark(Mark(frame.commit, self.mark.file, ends))
            records.cut(self.mark.ends)

    def rewrite_log(self, records: RecordLog) -> None:
        """Begin the next file of the log with all records of SQLite."""
        if self.mark.file:
            log.warning(
                "%s is missing or damaged; it is written again from the metadata file",
                records.path(self.mark.file),
            )
        number = max([self.mark.file, *records.numbers()]) + 1
        changes = sqlite_rows.read_changes(self.connection)
        draft = records.draft(number, self.mark.commits, changes)
        records.install(draft)
        self.move_mark(Mark(self.mark.commits, number, draft.end))

    def log_changes(self, records: RecordLog) -> None:
        """Store the changes of this transaction in the log, durably, before they are committed."""
        if self.logged:
            self._log_end = self.mark.ends
            ends = records.append(self.mark.ends, self._next_commit, self.logged)
            self.move_mark(Mark(self._next_commit, self.mark.file, ends))

    def move_mark(self, mark: Mark) -> None:
        self.mark = mark
        sqlite_rows.write_mark(self.connection, mark)

    def undo_log(self, records: RecordLog) -> None:
        """Remove the changes from the log before the transaction is rolled back."""
        if self._log_end is not None:
            with suppress(OSError):
                records.cut(self._log_end)

    @property
    def _next_commit(self) -> int:
        return self.mark.commits + 1

    def _heal(self, path: str) -> RecordRow | None:
        changes = [change for change in self.logged if change.path == path and not change.sequence]
        change = changes[-1] if changes else self._scan(path).records.get(path)
        log.warning("the record %s is damaged in the metadata file; it is taken from the record log", path)
        if change is None or change.version == ABSENT:
            # The row of an ephemeral value, or of a record that was deleted.
            self.connection.execute("DELETE FROM node WHERE path = ?", (path,))
            return None
        row = RecordRow(change.value, change.version, None, change.commit)
        sqlite_rows.write_row(self.connection, path, row)
        return row

    def _logged_sequence(self, path: str) -> int:
        numbers = [change.version for change in self.logged if change.sequence and change.path == path]
        if numbers:
            return numbers[-1]
        kept = self._scan(path).sequences.get(path)
        if kept is None:
            raise MetadataError(f"the sequence {path} is damaged and not in the record log")
        return kept.version

    def _scan(self, path: str) -> RecordState:
        """The records of the log; DamagedRecordError if a change of `path` may be missing in it."""
        try:
            scan = self.owner.records.scan(self.mark.file)
        except OSError as error:
            raise DamagedRecordError(
                f"{path} is damaged, and the record log cannot be read: {error}"
            ) from error
        damage = scan.damage
        if damage is None and (scan.end, scan.state.commit) != (self.mark.ends, self.mark.commits):
            damage = f"the frame at byte {scan.end} is damaged"
        if damage is not None:
            raise DamagedRecordError(
                f"{path} is damaged in the metadata file, and so is the record log: {damage}; "
                "stop all brokers and look with `anabranch store check`"
            )
        return scan.state


def _size(records: RecordLog, mark: Mark) -> int | None:
    """Size of the log, or None if it lacks bytes that were stored."""
    if records.broken or not mark.file:
        return None
    try:
        size = records.open(mark.file)
    except FileNotFoundError:
        return None
    return size if size >= mark.ends else None


def _version(path: str, row: RecordRow | None, expected: int | None) -> int:
    version = ABSENT if row is None else row.version
    if expected is not None and expected != version:
        raise VersionConflictError(f"{path} has version {version}, not {expected}")
    return version
