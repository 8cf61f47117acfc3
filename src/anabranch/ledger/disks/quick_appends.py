"""Synced appends to one file at a time, on a thread that never waits for the interpreter.

A commit crosses to such a thread and back in less than half of the time that a thread of Python takes, and
every single publish waits for that. Only small appends are worth it: they are copied into one buffer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from anabranch.ledger.disks.disk import NO_ROOM, DiskFullError
from anabranch.speedups import SyncThreadType

QUICK_BYTES_MAX: Final = 64 * 1024
"""Larger appends take the usual way, because a copy of them would hold up the event loop."""


class QuickAppends:
    """Appends to the file that was opened last; the caller waits for each append before the next."""

    def __init__(self, thread: SyncThreadType) -> None:
        self._thread = thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[tuple[int, int]] | None = None
        self.file: str | None = None
        """The file that appends go to."""
        self._fd = -1

    def takes(self, buffers: Sequence[bytes]) -> bool:
        """Whether this is the quicker way for these bytes."""
        return sum(map(len, buffers)) <= QUICK_BYTES_MAX

    def follow(self, file: str, fd: int) -> None:
        """Append to this file from now on; `fd` is a descriptor of it, which is closed here."""
        self.leave()
        self.file, self._fd = file, fd

    def leave(self) -> None:
        """Close the file; no append may be under way."""
        if self._fd >= 0:
            os.close(self._fd)
        self.file, self._fd = None, -1

    async def append(self, buffers: Sequence[bytes]) -> None:
        """Append to the end of the file and sync it; without room the file keeps nothing of it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._thread.fileno(), self._take)
        ended = self._ended = self._loop.create_future()
        self._thread.give(self._fd, b"".join(buffers))
        written, error = await ended
        if error in NO_ROOM:
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise DiskFullError(error, os.strerror(error), self.file)
        if error:
            raise OSError(error, os.strerror(error), self.file)

    def _take(self) -> None:
        found = self._thread.take()
        # A caller that was cancelled does not wait any more.
        if found is not None and self._ended is not None and not self._ended.done():
            self._ended.set_result(found)

    def close(self) -> None:
        """Wait for the append under way, and close the file."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._thread.fileno())
        self._thread.close()
        self.leave()
