"""The disk as a port: named files below one root, and the operations that make their bytes durable.

File names are relative, with `/` between folders. A folder is created with its first file and removed with
its last.

File names are relative, with `/` between folders. A folder is created with its first file and removed with
its last.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""The errno values that mean the disk is full."""

Write = tuple[str, Sequence[bytes]]
"""A file name, and the buffers to append to that file."""


class DiskFullError(OSError):
    """The disk has no room for the bytes. Every file named in the call is unchanged."""


class DiskSpace(NamedTuple):
    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """Files under one root.

    Written bytes are visible to `read` and `sizes` when the call returns, and survive a power loss only once
    a sync of that file has returned; until then any part of them may be kept, lost or torn. The caller never
    has two changing calls on one file under way; calls on different files may overlap. Failures are OSError,
    after which the state of the files named in the call is unknown, except after a DiskFullError, which
    `append` and `replace` raise.
    """

    async def lock(self, name: str = "", fence: str | None = None) -> None:
        """Lock the root for this process until `close`; raise HeldError if another process holds it.

        A process that finds the root locked is told `name`. A holder whose name is `fence` is killed first;
        when the call returns, that holder can no longer change the root.

        Another process that finds the root held learns `name`. A holder whose name is `fence` is killed
        first; when the call returns, that holder cannot change the root any more.
        """

    async def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file under the root."""

    async def read(self, file: str, offset: int, length: int) -> bytes:
        """Return bytes from `offset`, fewer at the end of the file.

        FileNotFoundError if the file is missing.
        """

    async def append(self, writes: Sequence[Write], *, sync: bool = False) -> None:
        """Append buffers to each file, in order. Missing files are created.

        With `sync`, all bytes in these files, and their names, are durable when the call returns.

        With `sync` everything in these files, and their names, is durable when the call returns.
        """

    async def sync(self, files: Sequence[str]) -> None:
        """Make the names of these files durable, and all bytes written to them before the call."""

    async def truncate(self, file: str, size: int) -> None:
        """Cut the file to `size`. A power loss before the next sync may bring the cut bytes back."""

    async def replace(self, file: str, data: bytes, *, urgent: bool = False) -> None:
        """Replace the content durably. After a crash the file has either the old or the new content.

        An urgent call waits only for synced appends, not for other changes.

        An urgent call waits for synced appends only, not for other changes.
        """

    async def delete(self, files: Sequence[str]) -> None:
        """Remove files, skipping unknown names. A crash may bring the files back."""

    async def space(self) -> DiskSpace:
        """Return the size of the disk, and how much of it this process may still use."""

    async def reserve(self, size_bytes: int | None = None) -> int:
        """Reserve this many bytes of the disk, by default as many as before.

        Return the bytes reserved now.
        """

    async def close(self) -> None:
        """Finish the calls in progress and release the lock. No call may follow."""
