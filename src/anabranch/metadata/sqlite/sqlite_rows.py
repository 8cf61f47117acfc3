"""The rows of records, sequences and the mark in SQLite, each with a checksum over all of its fields."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c
import msgspec

from anabranch.errors import DamagedRecordError
from anabranch.metadata.sqlite.record_log_format import LoggedChange, RecordState
from anabranch.metadata.sqlite.sqlite_file import SCHEMA, SCHEMA_VERSION


class RecordRow(NamedTuple):
    """A stored record; `written` is the commit that wrote it, 0 for an ephemeral value."""

    value: bytes
    version: int
    session: int | None
    written: int


class Mark(NamedTuple):
    """Number of commits so far, and the file of the record log with its end after the last of them."""

    commits: int = 0
    file: int = 0
    ends: int = 0


def read_row(connection: sqlite3.Connection, path: str) -> RecordRow | None:
    """The record at `path`; DamagedRecordError if its bytes changed since they were written."""
    found = connection.execute(
        "SELECT value, version, session, written, checksum FROM node WHERE path = ?", (path,)
    ).fetchone()
    if found is None:
        return None
    row = RecordRow(*found[:4])
    _check(path, found[4], row.value, path, *row[1:])
    return row


def write_row(connection: sqlite3.Connection, path: str, row: RecordRow) -> None:
    checksum = _checksum(row.value, path, *row[1:])
    connection.execute(
        "INSERT OR REPLACE INTO node (path, version, session, written, checksum, value) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (path, row.version, row.session, row.written, checksum, row.value),
    )


def read_sequence(connection: sqlite3.Connection, path: str) -> int:
    """The next number of a sequence; 0 if it has given no number."""
    found = connection.execute(
        "SELECT next, written, checksum FROM sequence WHERE path = ?", (path,)
    ).fetchone()
    if found is None:
        return 0
    _check(path, found[2], b"", path, *found[:2])
    return int(found[0])


def write_sequence(connection: sqlite3.Connection, path: str, following: int, written: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO sequence (path, next, written, checksum) VALUES (?, ?, ?, ?)",
        (path, following, written, _checksum(b"", path, following, written)),
    )


def read_mark(connection: sqlite3.Connection) -> Mark:
    found = connection.execute("SELECT commits, file, ends, checksum FROM mark").fetchone()
    if found is None:
        return Mark()
    _check("of the end of the log; the next start of all brokers rebuilds it", found[3], b"", *found[:3])
    return Mark(*found[:3])


def write_mark(connection: sqlite3.Connection, mark: Mark) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO mark (id, commits, file, ends, checksum) VALUES (1, ?, ?, ?, ?)",
        (*mark, _checksum(b"", *mark)),
    )


def write_change(connection: sqlite3.Connection, change: LoggedChange) -> None:
    """Store a change of the record log."""
    if change.sequence:
        write_sequence(connection, change.path, change.version, change.commit)
    elif change.version < 0:
        connection.execute("DELETE FROM node WHERE path = ?", (change.path,))
    else:
        write_row(connection, change.path, RecordRow(change.value, change.version, None, change.commit))


def read_changes(connection: sqlite3.Connection, damaged: list[str] | None = None) -> Iterator[LoggedChange]:
    """All records and sequences as changes; damaged paths are added to the list, or raised without one."""
    nodes = connection.execute(
        "SELECT path, value, version, session, written, checksum FROM node WHERE session IS NULL"
    )
    for path, value, version, session, written, checksum in nodes:
        if _passes(path, checksum, damaged, value, path, version, session, written):
            yield LoggedChange(path, written, version, value)
    for path, following, written, checksum in connection.execute("SELECT * FROM sequence"):
        if _passes(path, checksum, damaged, b"", path, following, written):
            yield LoggedChange(path, written, following, b"", True)


def create(connection: sqlite3.Connection, state: RecordState) -> None:
    """Make the tables of a new file and store a state in them, within the open transaction."""
    for statement in SCHEMA.split(";"):
        connection.execute(statement)
    for change in state.changes():
        write_change(connection, change)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _passes(path: str, checksum: object, damaged: list[str] | None, value: object, *fields: object) -> bool:
    try:
        _check(path, checksum, value, *fields)
    except DamagedRecordError:
        if damaged is None:
            raise
        damaged.append(str(path))
        return False
    return True


def _check(name: str, checksum: object, value: Any, *fields: object) -> None:
    # A flipped bit may also change the type of a field.
    if not isinstance(value, bytes) or checksum != _checksum(value, *fields):
        raise DamagedRecordError(f"the record {name} is damaged")


def _checksum(value: bytes, *fields: object) -> int:
    return int(google_crc32c.extend(google_crc32c.value(msgspec.msgpack.encode(fields)), value))
