"""A disk with separate cached and durable bytes, and the damage of a power failure.

`Platter` is the medium of one store and outlives processes; `SimDisk` is the `Disk` port of one process on
it. A killed process leaves the cache intact. A power failure keeps durable bytes; the seed decides for the
other bytes of each file whether they are dropped, kept, torn or full of holes. Each call takes effect late
and returns later, so a crash can happen between any two of its steps.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from anabranch.errors import AlreadyClosedError, HeldError
from anabranch.ledger.disks.disk import DiskSpace, Write
from simulation.world.loop import SimulationError
from simulation.world.platter import Platter, PlatterFile
from simulation.world.process import SimProcess

T = TypeVar("T")


class SimDisk:
    """The `Disk` port of one simulated process."""

    def __init__(self, platter: Platter, process: SimProcess) -> None:
        self._platter = platter
        self._process = process
        self._busy: dict[str, str] = {}
        self._closed = False
        process.on_death.append(self._died)

    def _died(self) -> None:
        if self._platter.holder is self._process:
            self._platter.holder = None
        if self._process.machine_lost:
            self._platter.lose_power()

    async def lock(self, name: str = "", fence: str | None = None) -> None:
        await self._run("lock", (), self._lock(name, fence))

    async def _lock(self, name: str, fence: str | None) -> None:
        await self._work()
        holder = self._platter.holder
        if holder is not None and holder.alive and (holder is not self._process or fence is not None):
            known_as = self._platter.holder_name
            if known_as != fence or holder is self._process:
                raise HeldError(f"the data directory is in use by process {holder.name}", known_as)
            self._platter.outcomes["holder fenced"] += 1
            self._platter.loop.outside(holder.kill)
            await self._work()
        self._platter.holder, self._platter.holder_name = self._process, name

    async def sizes(self) -> dict[str, int]:
        async def sizes() -> dict[str, int]:
            await self._work()
            return {name: len(file.data) for name, file in sorted(self._platter.files.items())}

        return await self._run("sizes", (), sizes())

    async def read(self, file: str, offset: int, length: int) -> bytes:
        async def read() -> bytes:
            await self._work()
            self._maybe_fail_read(file)
            found = self._platter.files.get(file)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", file)
            return bytes(found.data[offset : offset + length])

        return await self._run("read", (), read())

    def _maybe_fail_read(self, file: str) -> None:
        platter = self._platter
        fault = platter.take_fault("read")
        if fault is None and platter.read_errors and platter.rng.random() < platter.read_errors:
            fault = errno.EIO
        if fault is not None:
            platter.outcomes["read failed"] += 1
            raise OSError(fault, os.strerror(fault), file)

    async def append(self, writes: Sequence[Write], *, sync: bool = False) -> None:
        names = [name for name, _ in writes]

        async def append() -> None:
            # A call succeeds or fails as a whole. Concurrent calls are small, so they are not counted here.
            self._platter.check_room(sum(len(buffer) for _, buffers in writes for buffer in buffers))
            for name, buffers in writes:
                await self._work()
                self._write(name, b"".join(buffers))
            if sync:
                await self._sync(names)

        await self._run("append", names, append())

    def _write(self, name: str, data: bytes) -> None:
        file = self._platter.files.setdefault(name, PlatterFile())
        fault = self._platter.take_fault("append")
        if fault is not None:
            file.data += data[: self._platter.rng.randrange(len(data) + 1)]
            raise OSError(fault, os.strerror(fault), name)
        file.data += data

    async def sync(self, files: Sequence[str]) -> None:
        await self._run("sync", files, self._sync(files))

    async def _sync(self, names: Sequence[str]) -> None:
        for name in names:
            file = self._platter.files.setdefault(name, PlatterFile())
            # The sync covers only bytes that were written before it started.
            covered = len(file.data)
            await self._sleep(self._platter.sync_latency_s)
            fault = self._platter.take_fault("sync")
            if fault is not None:
                # Linux drops pages that it could not write; the next sync succeeds.
                del file.data[file.durable :]
                raise OSError(fault, os.strerror(fault), name)
            file.durable = max(file.durable, min(covered, len(file.data)))
            file.named = True
            self._platter.settle_names(name)
        await self._work()

    async def truncate(self, file: str, size: int) -> None:
        async def truncate() -> None:
            await self._work()
            found = self._platter.files.get(file)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", file)
            cut = found.copy()
            del cut.data[size:]
            cut.durable = min(cut.durable, size)
            self._platter.change(file, cut)
            await self._work()

        await self._run("truncate", [file], truncate())

    async def replace(self, file: str, data: bytes, *, urgent: bool = False) -> None:
        async def replace() -> None:
            await self._work()
            self._platter.check_room(len(data))
            await self._sleep(self._platter.sync_latency_s)
            self._platter.change(file, PlatterFile(bytearray(data), len(data), named=True))
            await self._sleep(self._platter.sync_latency_s)
            self._platter.settle_names(file)
            await self._work()

        await self._run("replace", [file], replace())

    async def delete(self, files: Sequence[str]) -> None:
        async def delete() -> None:
            for name in files:
                await self._work()
                if name in self._platter.files:
                    self._platter.change(name, None)

        await self._run("delete", files, delete())

    async def space(self) -> DiskSpace:
        return DiskSpace(self._platter.capacity_bytes, self._platter.free_bytes)

    async def reserve(self, size_bytes: int | None = None) -> int:
        platter = self._platter
        if size_bytes is not None and size_bytes - platter.reserved_bytes <= platter.free_bytes:
            platter.reserved_bytes = size_bytes
        return platter.reserved_bytes

    async def close(self) -> None:
        self._closed = True
        if self._platter.holder is self._process:
            self._platter.holder = None

    async def _work(self) -> None:
        await self._sleep(self._platter.latency_s)

    async def _sleep(self, latency_s: tuple[float, float]) -> None:
        await asyncio.sleep(self._platter.rng.uniform(*latency_s))

    async def _run(self, call: str, changing: Sequence[str], work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise AlreadyClosedError("the disk is closed")
        for name in changing:
            if name in self._busy:
                work.close()
                raise SimulationError(f"{call} of {name} while {self._busy[name]} of it is under way")
            self._busy[name] = call
        self._platter.loop.note(f"disk {call} {' '.join(changing)}")

        def release(done: asyncio.Task[T]) -> None:
            for name in changing:
                del self._busy[name]
            if not done.cancelled():
                # A caller that was cancelled does not ask for the outcome.
                done.exception()

        # Cancelling the caller does not stop a system call that has begun.
        task = asyncio.ensure_future(work)
        task.add_done_callback(release)
        return await asyncio.shield(task)
