"""A file beside the metadata that takes room on the disk, and gives it up when the disk is full.

Admin calls, leases and starts write to the metadata, and few bytes each time. Any process that uses the
metadata may give the file up, and the next commit that finds enough room makes it again.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 2 * 1024 * 1024
RESERVE_SHARE = 32
"""The reserve is at most this part of the disk."""

PLENTY = 8
"""The file is made only while this many times its size is free."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_IO_ERRORS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


class MetadataReserve:
    """The reserve of the metadata at `database`."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name("metadata-reserve")
        self._held = False

    def hold(self) -> None:
        """Make the file if it is missing and the disk has plenty of room; any failure leaves it missing."""
        if self._held:
            return
        with suppress(OSError):
            disk = os.statvfs(self._path.parent)
            size = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_SHARE)
            if disk.f_bavail * disk.f_frsize >= PLENTY * size:
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(fd, 0, size)
                    self._held = True
                finally:
                    os.close(fd)

    def give_up(self) -> bool:
        """Free the room that the file takes; False if it takes none."""
        self._held = False
        with suppress(OSError):
            if self._path.stat().st_size:
                os.truncate(self._path, 0)
                return True
        return False

    def make_room(self, connection: sqlite3.Connection, error: BaseException) -> bool:
        """After a failed transaction: whether another attempt may find room now."""
        if not lacks_room(error):
            return False
        given_up = self.give_up()
        with suppress(sqlite3.Error):
            # The commits in this file move into the database, and its room is free again.
            busy, pages, moved = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return bool(given_up or (not busy and pages == moved))
        return given_up


def lacks_room(error: BaseException | None) -> bool:
    """Whether an error, or its cause, may come from a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        # SQLite reports a full disk in several ways, depending on the file that it could not extend.
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _IO_ERRORS:
            return True
        error = error.__cause__
    return False
