"""A disk that is a dictionary: at once, without threads, and damaged only by the test that asks for it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

from anabranch.errors import ConflictError
from anabranch.ledger.disks.disk import DiskFullError, DiskSpace, Write


class DictDisk:
    """The `Disk` port over `files`; every call is one turn of the event loop."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files: dict[str, bytes] = {} if files is None else dict(files)
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        """Each call with its files, in order; reads too."""
        self.gate: asyncio.Event | None = None
        """While it is clear, synced appends wait here before they write."""
        self.fault: Callable[[str, str], OSError | None] = lambda call, file: None
        """Asked before each effect on a file; an error it returns is raised."""
        self.locked = False
        self.capacity = 2**50
        """Bytes that all files and the reserve may take together."""
        self.reserved = 0

    def count(self, call: str) -> int:
        return sum(name == call for name, _ in self.calls)

    async def lock(self, name: str = "", fence: str | None = None) -> None:
        await self._begin("lock")
        if self.locked:
            raise ConflictError("the disk is locked")
        self.locked = True

    async def sizes(self) -> dict[str, int]:
        await self._begin("sizes")
        return {file: len(data) for file, data in self.files.items()}

    async def read(self, file: str, offset: int, length: int) -> bytes:
        await self._begin("read", file)
        self._check("read", file)
        if file not in self.files:
            raise FileNotFoundError(file)
        return self.files[file][offset : offset + length]

    async def append(self, writes: Sequence[Write], *, sync: bool = False) -> None:
        await self._begin("commit" if sync else "append", *(file for file, _ in writes))
        if sync and self.gate is not None:
            await self.gate.wait()
        self._check_room(sum(len(buffer) for _, buffers in writes for buffer in buffers))
        for file, buffers in writes:
            self._check("append", file)
            self.files[file] = self.files.get(file, b"") + b"".join(buffers)
        if sync:
            for file, _ in writes:
                self._check("sync", file)

    async def sync(self, files: Sequence[str]) -> None:
        await self._begin("sync", *files)
        for file in files:
            self._check("sync", file)

    async def truncate(self, file: str, size: int) -> None:
        await self._begin("truncate", file)
        self.files[file] = self.files[file][:size]

    async def replace(self, file: str, data: bytes, *, urgent: bool = False) -> None:
        await self._begin("replace", file)
        self._check("replace", file)
        self._check_room(len(data))
        self.files[file] = data

    async def delete(self, files: Sequence[str]) -> None:
        await self._begin("delete", *files)
        for file in files:
            self.files.pop(file, None)

    async def space(self) -> DiskSpace:
        return DiskSpace(self.capacity, self.capacity - self.used)

    async def reserve(self, size_bytes: int | None = None) -> int:
        if size_bytes is not None and size_bytes - self.reserved <= self.capacity - self.used:
            self.reserved = size_bytes
        return self.reserved

    @property
    def used(self) -> int:
        return self.reserved + sum(map(len, self.files.values()))

    async def close(self) -> None:
        self.locked = False

    async def _begin(self, call: str, *files: str) -> None:
        self.calls.append((call, files))
        await asyncio.sleep(0)

    def _check_room(self, size_bytes: int) -> None:
        if self.used + size_bytes > self.capacity:
            raise DiskFullError(errno.ENOSPC, "no room left")

    def _check(self, call: str, file: str) -> None:
        error = self.fault(call, file)
        if error is not None:
            raise error
