"""Checks SQLite's file and the record log against each other, and rebuilds one from the other.

Each of them has all records, so any damage of one costs nothing. If both are damaged, the newest whole copy
of each record is kept. Only one process may do this, and no other may have the file open.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from anabranch.errors import DamagedRecordError, MetadataError, MissingDataError
from anabranch.metadata.sqlite.log_renewal import begin_file, renew_at_start
from anabranch.metadata.sqlite.record_log import LOG_FOLDER, RecordLog
from anabranch.metadata.sqlite.record_log_format import LoggedChange, LogScan, RecordState
from anabranch.metadata.sqlite.sqlite_file import BUSY_TIMEOUT_S, SCHEMA_VERSION, delete_sessions
from anabranch.metadata.sqlite.sqlite_rows import Mark
from anabranch.metadata.sqlite.sqlite_store import sqlite_rows

log = logging.getLogger(__name__)

UNCHECKED_FORMAT = 1
"""The format before rows had checksums; it is read once and rebuilt."""


@dataclass(frozen=True, slots=True)
class MetadataFinding:
    """One damaged place of the metadata."""

    file: str
    what: str
    """A sentence: the damage, and the copy from which it was or can be rebuilt."""
    lost_records: int = 0

    def __str__(self) -> str:
        lost = f"; {self.lost_records} records are lost" if self.lost_records else ""
        return f"{self.file}: {self.what}{lost}"


@dataclass(slots=True)
class DatabaseView:
    """The content of SQLite's file as far as it can be read."""

    format: int = SCHEMA_VERSION
    state: RecordState = field(default_factory=RecordState)
    mark: Mark = field(default_factory=Mark)
    damage: str | None = None
    """Damage of the file as a whole."""
    damaged: list[str] = field(default_factory=list)
    """Paths of damaged rows."""

    @property
    def whole(self) -> bool:
        return self.damage is None and not self.damaged


class WholeCopy(Enum):
    """The copy that has all records."""

    NOTHING = auto()
    """There is neither copy: the metadata is new."""
    DATABASE = auto()
    LOG = auto()
    BOTH = auto()
    """Both are damaged; each record is taken from the newest whole copy."""


def choose_source(database: DatabaseView | None, scan: LogScan | None) -> WholeCopy:
    """The copy from which the other is rebuilt; the log if both are whole and it has as many commits."""
    if database is None and scan is None:
        return WholeCopy.NOTHING
    commits = 0 if database is None else database.mark.commits
    if scan is not None and scan.based and scan.damage is None and scan.state.commit >= commits:
        return WholeCopy.LOG
    if database is not None and database.whole:
        return WholeCopy.DATABASE
    return WholeCopy.BOTH


def is_gone(database: DatabaseView | None, scan: LogScan | None) -> bool:
    """Whether neither copy has a begin from which the rest could follow."""
    readable = database is not None and database.damage is None
    return not readable and (scan is None or not scan.based)


def check_metadata(path: Path) -> tuple[MetadataFinding, ...]:
    """Report all damage of the metadata at `path` (`metadata.db`); changes no file."""
    database, scan = _look(path)
    return tuple(_findings(path, database, scan, choose_source(database, scan)))


def read_state(path: Path) -> RecordState:
    """All records, as a repair would keep them; changes no file."""
    database, scan = _look(path)
    return _best_state(database, scan, choose_source(database, scan))


def _look(path: Path) -> tuple[DatabaseView | None, LogScan | None]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        # SQLite changes its files when it reads them after a crash.
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        return _read_database(copy), _read_log(RecordLog.beside(path))


def repair_metadata(path: Path, *, may_begin: bool = True) -> tuple[MetadataFinding, ...]:
    """Make both copies whole and equal; returns what was damaged.

    Without `may_begin`, raises MissingDataError if neither copy exists.
    """
    records = RecordLog.beside(path)
    database, scan = _read_database(path), _read_log(records)
    source = choose_source(database, scan)
    if database is not None and database.format > SCHEMA_VERSION and source is not WholeCopy.LOG:
        raise MetadataError(f"{path} has format {database.format}; this version reads {SCHEMA_VERSION}")
    if not may_begin and is_gone(database, scan):
        raise MissingDataError(
            f"{path} and {path.with_name(LOG_FOLDER)} are missing or unreadable, but the stores beside them "
            "hold logs; restore them from a backup with `anabranch restore`"
        )
    findings = tuple(_findings(path, database, scan, source))
    state = _best_state(database, scan, source)
    if database is None or not database.whole or database.format != SCHEMA_VERSION:
        _rebuild(path, state)
        database = DatabaseView(state=state)
    with closing(_connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for change in state.changes_from(database.state):
            sqlite_rows.write_change(connection, change)
        delete_sessions(connection)
        if source is WholeCopy.LOG and scan is not None:
            mark = renew_at_start(records, scan)
        else:
            mark = begin_file(records, max([database.mark.file, *records.numbers()]) + 1, state)
        sqlite_rows.write_mark(connection, mark)
        connection.execute("COMMIT")
    records.clear(mark.file)
    records.close()
    return findings


def prepare(path: Path, *, may_begin: bool = True) -> None:
    """Check and repair the metadata before a start, and end all sessions; no other process may use it."""
    try:
        for finding in repair_metadata(path, may_begin=may_begin):
            log.warning("%s", finding)
    except (sqlite3.Error, OSError) as error:
        raise MetadataError(f"cannot use {path}: {error}") from error


def begin(connection: sqlite3.Connection, records: RecordLog) -> None:
    """Fill a new file, from the log if there is one, within the open transaction."""
    scan = _read_log(records)
    state = RecordState() if scan is None else scan.state
    sqlite_rows.create(connection, state)
    if scan is not None:
        log.warning("the metadata file is new; %d records are taken from the log", len(state.records))
        sqlite_rows.write_mark(connection, Mark(state.commit, scan.number, scan.end))


def _read_database(path: Path) -> DatabaseView | None:
    """The content of the file; None if there is no file, or an empty one."""
    if not path.exists():
        return None
    view = DatabaseView()
    try:
        with closing(_connect(path)) as connection:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                return None
            (view.format,) = connection.execute("PRAGMA user_version").fetchone()
            (sound,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            view.damage = None if sound == "ok" else str(sound)
            if view.format == UNCHECKED_FORMAT:
                _read_unchecked(connection, view.state)
            else:
                _read_rows(connection, view)
    except (sqlite3.Error, DamagedRecordError) as error:
        view.damage = str(error)
    if view.damage is None and view.format not in (UNCHECKED_FORMAT, SCHEMA_VERSION):
        view.damage = f"it has format {view.format}"
    return view


def _read_rows(connection: sqlite3.Connection, view: DatabaseView) -> None:
    for change in sqlite_rows.read_changes(connection, view.damaged):
        view.state.apply(change)
    view.mark = sqlite_rows.read_mark(connection)
    view.state.commit = view.mark.commits


def _read_unchecked(connection: sqlite3.Connection, state: RecordState) -> None:
    for path, value, version in connection.execute(
        "SELECT path, value, version FROM node WHERE session IS NULL"
    ):
        state.apply(LoggedChange(path, 0, version, value))
    for path, following in connection.execute("SELECT path, next FROM sequence"):
        state.apply(LoggedChange(path, 0, following, b"", True))


def _read_log(records: RecordLog) -> LogScan | None:
    """The file with the most commits; a file without its begin counts as damaged."""
    scans = [_scan(records, number) for number in records.numbers()]
    return max(scans, key=lambda scan: (scan.based, scan.state.commit, scan.number), default=None)


def _scan(records: RecordLog, number: int) -> LogScan:
    try:
        return records.scan(number)
    except OSError as error:
        return LogScan(number, RecordState(), 0, False, f"it cannot be read: {error}")


def _findings(
    path: Path, database: DatabaseView | None, scan: LogScan | None, source: WholeCopy
) -> list[MetadataFinding]:
    found: list[MetadataFinding] = []
    if source is WholeCopy.NOTHING or (database is not None and database.format == UNCHECKED_FORMAT):
        return found
    log_name = LOG_FOLDER if scan is None else f"{LOG_FOLDER}/{scan.number:08}.log"
    from_log = "it is taken from the record log" if source is WholeCopy.LOG else "the log is damaged too"
    if database is None:
        found.append(MetadataFinding(path.name, f"the file is missing; {from_log}"))
    elif database.damage is not None:
        found.append(MetadataFinding(path.name, f"{database.damage}; {from_log}"))
    elif database.damaged:
        lost = 0 if scan is None else len([path for path in database.damaged if not scan.state.knows(path)])
        what = f"{', '.join(database.damaged)} is damaged; {from_log}"
        found.append(MetadataFinding(path.name, what, lost))
    elif source is WholeCopy.LOG and scan is not None:
        missed = scan.state.commit - database.mark.commits
        if missed > 0:
            found.append(MetadataFinding(path.name, f"it lacks the last {missed} commits; {from_log}"))
        elif differ := scan.state.changes_from(database.state):
            found.append(MetadataFinding(path.name, f"{differ[0].path} differs; {from_log}"))
    if source in (WholeCopy.DATABASE, WholeCopy.BOTH):
        damage = "it is missing or lacks commits" if scan is None or not scan.damage else scan.damage
        found.append(MetadataFinding(log_name, f"{damage}; it is written again from {path.name}"))
    return found


def _best_state(database: DatabaseView | None, scan: LogScan | None, source: WholeCopy) -> RecordState:
    if scan is not None and source is WholeCopy.LOG:
        return scan.state
    state = RecordState() if database is None else database.state
    if scan is not None and source is WholeCopy.BOTH:
        state.add_newer(scan.state)
    return state


def _rebuild(path: Path, state: RecordState) -> None:
    """Make the file again; the old one is kept beside it under another name."""
    made = path.with_name(f"{path.name}.new")
    made.unlink(missing_ok=True)
    with closing(sqlite3.connect(made, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        sqlite_rows.create(connection, state)
        connection.execute("COMMIT")
    # A write-ahead log that stays would be applied to the new file.
    for suffix in ("-shm", "-wal", ""):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{path}.damaged{suffix}")
    os.replace(made, path)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection
