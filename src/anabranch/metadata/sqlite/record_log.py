"""The files of the record log: `metadata-log/00000001.log`, one of which is in use.

The caller holds the write lock of SQLite, so all processes write in one order. This module must not know
SQLite; the caller says where the log ends.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from anabranch.descriptors import open_patiently
from anabranch.metadata.sqlite.record_log_format import (
    COMMIT,
    HEAD_BYTES,
    LogFrame,
    LoggedChange,
    LogScan,
    base_frames,
    encode_frame,
    encode_head,
    scan,
)

LOG_FOLDER = "metadata-log"
FILE_MODE = 0o600
FOLDER_MODE = 0o700


_drafts = itertools.count()


class LogDraft(NamedTuple):
    """A file of the log that has no name yet."""

    path: Path
    number: int
    end: int


class RecordLog:
    """The log beside one SQLite file; used by one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        """The open file; 0 if no file is open."""
        self.broken = False
        """Whether a sync failed; then the kernel may have dropped the bytes, so the next file is needed."""
        self._fd = -1

    @staticmethod
    def beside(database: Path) -> RecordLog:
        return RecordLog(database.with_name(LOG_FOLDER))

    def numbers(self) -> list[int]:
        """The numbers of all files, in order."""
        with suppress(FileNotFoundError):
            stems = [name[:-4] for name in os.listdir(self.folder) if name.endswith(".log")]
            return sorted(int(stem) for stem in stems if stem.isdecimal())
        return []

    def files(self) -> list[Path]:
        """All files of the log, drafts too."""
        with suppress(OSError):
            return list(self.folder.iterdir())
        return []

    def path(self, number: int) -> Path:
        return self.folder / f"{number:08}.log"

    def scan(self, number: int) -> LogScan:
        return scan(number, self.path(number).read_bytes())

    def open(self, number: int) -> int:
        """Use a file, and return its size; OSError if it is missing."""
        if self.number != number:
            self.close()
            self._fd = open_patiently(self.path(number), os.O_RDWR | os.O_CLOEXEC)
            self.number = number
        return os.fstat(self._fd).st_size

    def read(self, at: int, length: int) -> bytes:
        return os.pread(self._fd, length, at)

    def append(self, end: int, commit: int, changes: list[LoggedChange]) -> int:
        """Store a transaction at the end, durably; returns the next end. On an error, `cut` the file."""
        data = encode_frame(self.number, end, LogFrame(COMMIT, commit, changes))
        _write(self._fd, data, end)
        try:
            os.fdatasync(self._fd)
        except OSError:
            self.broken = True
            raise
        return end + len(data)

    def cut(self, end: int) -> None:
        """Remove all bytes behind the end."""
        os.ftruncate(self._fd, end)

    def draft(self, number: int, commit: int, changes: Iterable[LoggedChange]) -> LogDraft:
        """Write the begin of a file under another name, durably."""
        self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        path = self.folder / f"{number:08}.{os.getpid()}-{next(_drafts)}.new"
        fd = open_patiently(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            _write(fd, encode_head(number), 0)
            end = _write_frames(fd, number, HEAD_BYTES, base_frames(commit, changes))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return LogDraft(path, number, end)

    def extend(self, draft: LogDraft, frames: Iterable[LogFrame]) -> LogDraft:
        """Add transactions to a draft."""
        fd = open_patiently(draft.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return draft._replace(end=_write_frames(fd, draft.number, draft.end, frames))
        finally:
            os.close(fd)

    def install(self, draft: LogDraft) -> None:
        """Give a draft its name, durably, and use it."""
        os.replace(draft.path, self.path(draft.number))
        for folder in (self.folder, self.folder.parent):
            _sync_folder(folder)
        self.close()
        self.open(draft.number)
        self.broken = False

    def tidy(self, keep: int) -> None:
        """Delete all older files; another process may have begun a newer one."""
        for number in self.numbers():
            if number < keep:
                self.path(number).unlink(missing_ok=True)

    def drop_drafts(self) -> None:
        """Delete the drafts of this process."""
        for file in self.files():
            if file.match(f"*.{os.getpid()}-*.new"):
                file.unlink(missing_ok=True)

    def clear(self, keep: int) -> None:
        """Delete all other files, drafts too; no other process may use the log."""
        for file in self.files():
            if file != self.path(keep):
                file.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.number = -1, 0


def _write_frames(fd: int, number: int, at: int, frames: Iterable[LogFrame]) -> int:
    for frame in frames:
        data = encode_frame(number, at, frame)
        _write(fd, data, at)
        at += len(data)
    os.fsync(fd)
    return at


def _write(fd: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written


def _sync_folder(folder: Path) -> None:
    fd = open_patiently(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
