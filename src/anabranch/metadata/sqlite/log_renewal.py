"""Goes on in the next file of the record log when a file has grown, while other threads go on committing.

A thread of its own writes all records as of one commit into a draft. A short transaction then adds the
commits since, and makes the draft the file in use.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from anabranch.errors import MetadataError
from anabranch.metadata.sqlite.metadata_reserve import lacks_room
from anabranch.metadata.sqlite.record_log import LogDraft, RecordLog
from anabranch.metadata.sqlite.record_log_format import LogScan, RecordState, follow
from anabranch.metadata.sqlite.sqlite_file import BUSY_TIMEOUT_S
from anabranch.metadata.sqlite.sqlite_rows import Mark
from anabranch.metadata.sqlite.sqlite_store import sqlite_rows
from anabranch.metadata.sqlite.sqlite_work import Work

log = logging.getLogger(__name__)

LOG_BYTES_MIN = 8 * 1024 * 1024
"""A file shorter than this is not renewed."""
GROWTH = 2
"""A file is renewed when it is this many times as long as at its begin."""


Finish = Callable[[Work], None]


class Renewal(NamedTuple):
    """The next file of the record log, with all records as of a mark."""

    mark: Mark
    draft: LogDraft


class LogRenewer:
    """Renews the log of one connection; `submit` runs work in a transaction of the connection's thread."""

    def __init__(
        self, path: Path, records: RecordLog, submit: Callable[[Callable[[Work], None]], None]
    ) -> None:
        self._path = path
        self._records = records
        self._submit = submit
        self._drafting: threading.Thread | None = None
        self._drafted: Renewal | None = None
        self._file = 0
        self._bytes_max = 0

    def tend(self, mark: Mark) -> None:
        """Called after each commit."""
        if mark.file != self._file:
            self._file, self._bytes_max = mark.file, max(LOG_BYTES_MIN, GROWTH * mark.ends)
            with suppress(OSError):
                self._records.tidy(mark.file)
        elif mark.ends > self._bytes_max:
            self._go_on()

    def stop(self) -> None:
        """Wait for the thread, and delete a draft that is not used."""
        if self._drafting is not None:
            self._drafting.join()
            self._records.drop_drafts()

    def _go_on(self) -> None:
        if self._drafting is None:
            self._drafting = threading.Thread(target=self._draft, name="metadata renewal", daemon=True)
            self._drafting.start()
        elif self._drafting.is_alive():
            return
        elif self._drafted is None:
            self._put_off()
        else:
            # The transaction of the first request may have failed before it used the draft.
            self._submit(self._finish)

    def _draft(self) -> None:
        try:
            self._drafted = _draft(self._path)
        except (sqlite3.Error, OSError, MetadataError) as error:
            log.warning("the next file of the record log cannot be written yet: %s", error)
        else:
            self._submit(self._finish)

    def _finish(self, work: Work) -> None:
        renewal, self._drafted = self._drafted, None
        if renewal is None:
            # An earlier transaction has used the draft.
            return
        if renew(work, self._records, renewal):
            self._drafting = None
        else:
            self._put_off()

    def _put_off(self) -> None:
        self._drafting = None
        self._bytes_max *= GROWTH


def _draft(path: Path) -> Renewal:
    with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        mark = sqlite_rows.read_mark(connection)
        changes = sqlite_rows.read_changes(connection)
        return Renewal(mark, RecordLog.beside(path).draft(mark.file + 1, mark.commits, changes))


def renew(work: Work, records: RecordLog, renewal: Renewal) -> bool:
    """Use the drafted file from this transaction on; False if it stays unused, and nothing is changed."""
    before = renewal.mark
    if work.mark.file != before.file:
        # Another process was faster.
        renewal.draft.path.unlink(missing_ok=True)
        return True
    try:
        data = records.read(before.ends, work.mark.ends - before.ends)
        missed = follow(before.file, data, before.ends, before.commits)
        draft = records.extend(renewal.draft, (frame for frame, _ in missed))
        records.install(draft)
    except OSError as error:
        log.warning("the record log goes on in its old file: %s", error)
        with suppress(OSError):
            renewal.draft.path.unlink(missing_ok=True)
        return False
    work.move_mark(Mark(work.mark.commits, draft.number, draft.end))
    return True


def renew_at_start(records: RecordLog, scan: LogScan) -> Mark:
    """Use a whole file of the log, or the next one if it is long and the disk has room for it."""
    state = scan.state
    length = sum(len(change.value) + len(change.path) for change in state.changes())
    if scan.end > max(LOG_BYTES_MIN, GROWTH * length):
        try:
            return begin_file(records, max(records.numbers()) + 1, state)
        except OSError as error:
            if not lacks_room(error):
                raise
            log.warning("the record log goes on in its old file, which stays long: %s", error)
    os.truncate(records.path(scan.number), scan.end)
    return Mark(state.commit, scan.number, scan.end)


def begin_file(records: RecordLog, number: int, state: RecordState) -> Mark:
    """Use a new file of the log with all records of a state."""
    draft = records.draft(number, state.commit, state.changes())
    records.install(draft)
    return Mark(state.commit, number, draft.end)
