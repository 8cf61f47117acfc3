"""A disk that keeps all changes in memory, on top of another disk, so that recovery can be tried safely."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ledger.disks.disk import Disk, DiskSpace, Write


class OverlayDisk:
    """The `Disk` port over the files of `below`, which are never changed."""

    def __init__(self, below: Disk) -> None:
        self._below = below
        self._kept: dict[str, int] = {}
        """How many bytes at the start of each file still come from the disk below."""
        self._added: dict[str, bytearray] = {}
        """The bytes that follow those of the disk below."""

    async def lock(self, name: str = "", fence: str | None = None) -> None:
        await self._below.lock(name, fence)
        self._kept = dict(await self._below.sizes())

    async def sizes(self) -> dict[str, int]:
        return {file: kept + len(self._added.get(file, b"")) for file, kept in self._kept.items()}

    async def read(self, file: str, offset: int, length: int) -> bytes:
        if file not in self._kept:
            raise FileNotFoundError(file)
        kept, added = self._kept[file], self._added.get(file, b"")
        end = offset + length
        data = b""
        if offset < kept:
            data = await self._below.read(file, offset, min(end, kept) - offset)
        return data + bytes(added[max(offset - kept, 0) : max(end - kept, 0)])

    async def append(self, writes: Sequence[Write], *, sync: bool = False) -> None:
        for file, buffers in writes:
            self._kept.setdefault(file, 0)
            added = self._added.setdefault(file, bytearray())
            for buffer in buffers:
                added += buffer

    async def sync(self, files: Sequence[str]) -> None:
        for file in files:
            self._kept.setdefault(file, 0)

    async def truncate(self, file: str, size: int) -> None:
        kept = self._kept[file]
        added = self._added.get(file, bytearray())
        self._added[file] = added[: max(size - kept, 0)]
        self._kept[file] = min(kept, size)

    async def replace(self, file: str, data: bytes, *, urgent: bool = False) -> None:
        self._kept[file] = 0
        self._added[file] = bytearray(data)

    async def delete(self, files: Sequence[str]) -> None:
        for file in files:
            self._kept.pop(file, None)
            self._added.pop(file, None)

    async def space(self) -> DiskSpace:
        return await self._below.space()

    async def reserve(self, size_bytes: int | None = None) -> int:
        return 0

    async def close(self) -> None:
        await self._below.close()
