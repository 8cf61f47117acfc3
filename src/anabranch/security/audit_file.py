"""The audit log on disk or standard error, written by a thread.

Several processes append to one file; a process that finds it too large renames it while it holds its lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o600
STDERR: Final = 2


class AuditFile:
    """Appends to one file, and begins a new one when it is full."""

    def __init__(self, path: Path, bytes_max: int, kept: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._kept = kept
        self._is_torn = False

    async def append(self, lines: bytes) -> None:
        await asyncio.to_thread(self.append_now, lines)

    def append_now(self, lines: bytes) -> None:
        """Append whole lines; raises OSError."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, MODE)
        try:
            if self._is_torn:
                lines = b"\n" + lines
            # On a full disk a part of the lines may be written.
            self._is_torn = True
            write_all(file, lines)
            self._is_torn = False
            if os.fstat(file).st_size >= self._bytes_max:
                self._begin_anew(file)
        finally:
            os.close(file)

    def _begin_anew(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another process is renaming it.
            return
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_ino != os.fstat(file).st_ino:
                return
            for number in range(self._kept - 1, 0, -1):
                with suppress(FileNotFoundError):
                    os.replace(self._numbered(number), self._numbered(number + 1))
            os.replace(self._path, self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


async def append_to_stderr(lines: bytes) -> None:
    await asyncio.to_thread(write_all, STDERR, lines)


def write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
