"""The disk port on the operating system's files.

This module knows files and how to make them durable, but nothing of logs, journals or records.

This module knows files and what makes them durable; knows nothing of logs, journals or records.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from anabranch import locks
from anabranch.descriptors import patiently
from anabranch.ledger.disks.disk import NO_ROOM, DiskFullError, DiskSpace, Write
from anabranch.ledger.disks.os_files import (
    open_end,
    read_part,
    resize_reserve,
    side_by_side,
    sizes_of,
    space_of,
    sync_file,
    sync_folder,
    sync_folders,
    write_all,
    write_draft,
)
from anabranch.ledger.disks.quick_appends import QuickAppends
from anabranch.ledger.disks.work_thread import WorkThread
from anabranch.speedups import SyncThread

T = TypeVar("T")

LOCK_FILE = "LOCK"
RESERVE_FILE = "reserve"


class OsDisk:
    """Files of the operating system. Commits, other changes and reads do not wait for each other."""

    def __init__(self, root: str | os.PathLike[str], *, open_files_max: int = 256) -> None:
        self._root = Path(root).absolute()
        self._lock_fd = -1
        self._closed = False
        # Commits go to one file at a time, so the previous journal file is closed when the next one starts.
        self._commits = _DiskThread("commit", self._root, 1)
        self._quick = None if SyncThread is None else QuickAppends(SyncThread())
        self._changes = _DiskThread("change", self._root, open_files_max)
        self._reads = ThreadPoolExecutor(2, "anabranch-disk-read")

    async def lock(self, name: str = "", fence: str | None = None) -> None:
        self._lock_fd = await self._changes.run(lambda: _take_lock(self._root, name, fence))

    async def sizes(self) -> dict[str, int]:
        return await self._changes.run(lambda: sizes_of(self._root))

    async def read(self, file: str, offset: int, length: int) -> bytes:
        path = _path(self._root, file)
        return await asyncio.get_running_loop().run_in_executor(self._reads, read_part, path, offset, length)

    def append(self, writes: Sequence[Write], *, sync: bool = False) -> Coroutine[Any, Any, None]:
        # Every commit passes through each coroutine between the journal and its thread, so keep them few.
        quick = self._quick
        if sync and quick is not None and len(writes) == 1:
            file, buffers = writes[0]
            if file != quick.file:
                return self._begin(quick, file, buffers)
            if quick.takes(buffers):
                return quick.append(buffers)
        thread = self._commits if sync else self._changes
        return thread.run(lambda: thread.append(writes, sync))

    async def _begin(self, quick: QuickAppends, file: str, buffers: Sequence[bytes]) -> None:
        """Create a file with an ordinary append, which syncs its name, then send quick appends to it."""
        quick.follow(file, await self._commits.run(lambda: self._commits.begin(file, buffers)))

    async def sync(self, files: Sequence[str]) -> None:
        await self._changes.run(lambda: self._changes.sync(files))

    async def truncate(self, file: str, size: int) -> None:
        await self._changes.run(lambda: self._changes.truncate(file, size))

    async def replace(self, file: str, data: bytes, *, urgent: bool = False) -> None:
        thread = self._commits if urgent else self._changes
        await thread.run(lambda: thread.replace(file, data))

    async def delete(self, files: Sequence[str]) -> None:
        await self._changes.run(lambda: self._changes.delete(files))
        if self._quick is not None and self._quick.file in files:
            self._quick.leave()
        if any(map(self._commits.has_open, files)):
            # The space of a deleted file is not freed until its last descriptor is closed.
            await self._commits.run(lambda: self._commits.forget(files))

    async def space(self) -> DiskSpace:
        return await asyncio.get_running_loop().run_in_executor(self._reads, space_of, self._root)

    async def reserve(self, size_bytes: int | None = None) -> int:
        path = self._root / RESERVE_FILE
        return await self._changes.run(lambda: resize_reserve(path, size_bytes))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._quick is not None:
            self._quick.close()
        await self._commits.close()
        await self._changes.close()
        self._reads.shutdown()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


class _DiskThread:
    """One thread and its open files. It carries out changes one at a time."""

    def __init__(self, name: str, root: Path, open_files_max: int) -> None:
        self._root = root
        self._thread = WorkThread(f"anabranch-disk-{name}", "the disk is closed")
        self._open_files_max = open_files_max
        self._fds: OrderedDict[str, int] = OrderedDict()
        # Files whose names this process has synced. An earlier process may have died before it synced a name.
        self._named: set[str] = set()
        self._synced_bytes = 0

    def run(self, work: Callable[[], T]) -> Coroutine[Any, Any, T]:
        return self._thread.run(work)

    async def close(self) -> None:
        await self.run(self._forget_all)
        self._thread.close()

    def append(self, writes: Sequence[Write], sync: bool) -> None:
        written = self._write(writes)
        if sync:
            self._synced_bytes += written
            self.sync([file for file, _ in writes])
            if self._synced_bytes >= _FORGET_BYTES:
                self._synced_bytes = 0
                self._forget_pages([file for file, _ in writes])

    def begin(self, file: str, buffers: Sequence[bytes]) -> int:
        """Append to a file and sync it; return a descriptor of the file that the caller has to close."""
        self.append([(file, buffers)], True)
        return os.dup(self._fd(file))

    def _write(self, writes: Sequence[Write]) -> int:
        """Append the buffers to the files. If there is no room for all of them, no file keeps any."""
        written = 0
        before: list[tuple[str, int]] = []
        try:
            for file, buffers in writes:
                fd = self._fd(file)
                before.append((file, os.fstat(fd).st_size))
                written += write_all(fd, buffers)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            for file, size in before:
                self.truncate(file, size)
            raise DiskFullError(error.errno, error.strerror, str(self._root)) from error
        return written

    def _forget_pages(self, files: Sequence[str]) -> None:
        """Let the kernel reuse the pages of synced bytes. Fresh pages make appends up to ten times slower."""
        for file in files:
            os.posix_fadvise(self._fd(file), 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, files: Sequence[str]) -> None:
        if len(files) <= _SYNCED_IN_TURN_MAX:
            for file in files:
                os.fdatasync(self._fd(file))
        else:
            side_by_side(sync_file, [_path(self._root, file) for file in files])
        unnamed = [file for file in files if file not in self._named]
        if unnamed:
            sync_folders(self._root, unnamed)
            self._named.update(unnamed)

    def truncate(self, file: str, size: int) -> None:
        os.truncate(_path(self._root, file), size)

    def replace(self, file: str, data: bytes) -> None:
        path = _path(self._root, file)
        draft = path.with_name(path.name + ".new")
        try:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            write_draft(draft, data, self._forget_all)
            os.replace(draft, path)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            draft.unlink(missing_ok=True)
            raise DiskFullError(error.errno, error.strerror, str(self._root)) from error
        # An open descriptor would still refer to the old content.
        self._forget(file)
        sync_folders(self._root, [file])

    def delete(self, files: Sequence[str]) -> None:
        for file in files:
            self._forget(file)
            path = _path(self._root, file)
            path.unlink(missing_ok=True)
            # Both threads use the folders directly below the root, so those are never removed.
            if file.count("/") > 1:
                with suppress(OSError):
                    path.parent.rmdir()

    def _fd(self, file: str) -> int:
        fd = self._fds.get(file)
        if fd is not None:
            self._fds.move_to_end(file)
            return fd
        while len(self._fds) >= self._open_files_max:
            os.close(self._fds.popitem(last=False)[1])
        path = _path(self._root, file)
        fd = patiently(lambda: open_end(path), self._forget_all)
        self._fds[file] = fd
        return fd

    def has_open(self, file: str) -> bool:
        return file in self._fds

    def forget(self, files: Sequence[str]) -> None:
        """Close files that another thread deleted."""
        for file in files:
            self._forget(file)

    def _forget(self, file: str) -> None:
        self._named.discard(file)
        fd = self._fds.pop(file, -1)
        if fd >= 0:
            os.close(fd)

    def _forget_all(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])


_FORGET_BYTES = 1024 * 1024

_SYNCED_IN_TURN_MAX = 64
"""Syncs of more files than this are spread over several threads."""


def _path(root: Path, file: str) -> Path:
    if file.startswith("/") or "\0" in file or ".." in file.split("/"):
        raise ValueError(f"{file!r} is not a file name below the data directory")
    return root / file


def make_root(root: Path) -> None:
    """Create the root and its parents, and make their names durable."""
    if root.is_dir():
        return
    make_root(root.parent)
    root.mkdir(0o700, exist_ok=True)
    sync_folder(root.parent)


def _take_lock(root: Path, name: str, fence: str | None) -> int:
    make_root(root)
    return locks.take(root / LOCK_FILE, name, fence=fence)
