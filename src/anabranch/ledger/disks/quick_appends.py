"""Synced appends to one file at a time, on a thread that does not need the interpreter lock.

A commit reaches such a thread and returns in less than half the time that a Python thread takes, and every
single publish waits for that: measured in turns, a send took 0.52 instead of 0.57 ms (docs/benchmarks.md).
This pays only for small appends, because they are copied into one buffer.

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
"""Larger appends use the ordinary path, because copying them would block the event loop."""


class QuickAppends:
    """Appends to the file opened last. The caller waits for each append before it starts the next."""

    def __init__(self, thread: SyncThreadType) -> None:
        self._thread = thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[tuple[int, int]] | None = None
        self.file: str | None = None
        """The file that receives the appends."""
        self._fd = -1

    def takes(self, buffers: Sequence[bytes]) -> bool:
        """Return whether this path is the faster one for these bytes."""
        return sum(map(len, buffers)) <= QUICK_BYTES_MAX

    def follow(self, file: str, fd: int) -> None:
        """Append to this file from now on. `fd` is a descriptor of the file; this object closes it."""
        self.leave()
        self.file, self._fd = file, fd

    def leave(self) -> None:
        """Close the file. No append may be in progress."""
        if self._fd >= 0:
            os.close(self._fd)
        self.file, self._fd = None, -1

    async def append(self, buffers: Sequence[bytes]) -> None:
        """Append to the file and sync it. If there is no room, the file is unchanged."""
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
        # A cancelled caller no longer waits for the result.
        if found is not None and self._ended is not None and not self._ended.done():
            self._ended.set_result(found)

    def close(self) -> None:
        """Wait for the append in progress, then close the file."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._thread.fileno())
        self._thread.close()
        self.leave()
