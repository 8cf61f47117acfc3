"""The disk as a port: named files below one root, and what makes their bytes durable.

File names are relative, with `/` between folders. A folder is created with its first file and removed with
its last.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a full disk."""

Write = tuple[str, Sequence[bytes]]
"""A file name and the buffers to put at its end."""


class DiskFullError(OSError):
    """The disk has no room for the bytes; every file named in the call is as it was before the call."""


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
        """Take the root for this process alone, until `close`; HeldError when another process holds it.

        Another process that finds the root held learns `name`. A holder whose name is `fence` is killed
        first; when the call returns, that holder cannot change the root any more.
        """

    async def sizes(self) -> dict[str, int]:
        """Every file under the root and its size in bytes."""

    async def read(self, file: str, offset: int, length: int) -> bytes:
        """Bytes from `offset`, fewer at the end of the file; FileNotFoundError if the file is missing."""

    async def append(self, writes: Sequence[Write], *, sync: bool = False) -> None:
        """Put buffers at the end of each file, in order; create files that do not exist.

        With `sync` everything in these files, and their names, is durable when the call returns.
        """

    async def sync(self, files: Sequence[str]) -> None:
        """Make the names of these files durable, and all bytes written to them before the call."""

    async def truncate(self, file: str, size: int) -> None:
        """Cut the file to `size`; a power loss before the next sync may bring the rest back."""

    async def replace(self, file: str, data: bytes, *, urgent: bool = False) -> None:
        """Replace the content durably; after a crash the file has the old content or the new.

        An urgent call waits for synced appends only, not for other changes.
        """

    async def delete(self, files: Sequence[str]) -> None:
        """Remove files; unknown names are skipped. A crash may bring the files back."""

    async def space(self) -> DiskSpace:
        """The size of the disk, and the part of it that is free for this process."""

    async def reserve(self, size_bytes: int | None = None) -> int:
        """Hold this many bytes of the disk, as many as before by default; returns the bytes held now."""

    async def close(self) -> None:
        """Finish the calls under way and release the lock; no call may follow."""
