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
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anabranch.errors import AlreadyClosedError, HeldError
from anabranch.ledger.disk import Write
from anabranch.testing.simloop import SimLoop, SimulationError
from anabranch.testing.simprocess import SimProcess

T = TypeVar("T")

BLOCK_BYTES = 512
"""The unit that a disk writes atomically."""


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    """The number of bytes at the start that survive a power failure."""
    named: bool = False
    """Whether the name survives a power failure."""

    def copy(self) -> _File:
        return _File(bytearray(self.data), self.durable, self.named)


class Platter:
    """The files of one store."""

    latency_s = (0.00005, 0.001)
    sync_latency_s = (0.0002, 0.003)

    def __init__(self, loop: SimLoop, name: str = "disk") -> None:
        self.loop = loop
        self.rng: random.Random = loop.random(f"disk {name}")
        self.files: dict[str, _File] = {}
        self.holder: SimProcess | None = None
        self.holder_name = ""
        self.outcomes: Counter[str] = Counter()
        self.faults: dict[str, list[int]] = {}
        """Error numbers for the next `append` or `sync` calls."""
        # Files before changes that no sync made durable; None is a file that did not exist.
        self._before: dict[str, _File | None] = {}

    def fail_next(self, call: str, error: int = errno.EIO) -> None:
        """Let the next `append` or `sync` fail once."""
        self.faults.setdefault(call, []).append(error)

    def take_fault(self, call: str) -> int | None:
        waiting = self.faults.get(call)
        return waiting.pop(0) if waiting else None

    def change(self, name: str, new: _File | None) -> None:
        """Replace or remove a file; durable once its folder is synced."""
        old = self.files.get(name)
        self._before.setdefault(name, None if old is None else old.copy())
        if new is None:
            self.files.pop(name, None)
        else:
            self.files[name] = new

    def settle_names(self, name: str) -> None:
        """Make renames and removals in the folder of this file durable."""
        folder = name.rpartition("/")[0]
        for other in [n for n in self._before if n.rpartition("/")[0] == folder]:
            del self._before[other]

    def lose_power(self) -> None:
        """Keep durable bytes, and of the others those that the seed picks."""
        for name, before in self._before.items():
            if self.rng.random() < 0.5:
                self.outcomes["change undone"] += 1
                if before is None:
                    self.files.pop(name, None)
                else:
                    self.files[name] = before
        self._before.clear()
        for name in sorted(self.files):
            self._damage(name, self.files[name])

    def flip_bit(self, prefix: str = "") -> str | None:
        """Turn one bit over, as a decaying disk does; returns the place, or None if there is no byte.

        The seed picks a file whose name starts with `prefix`, then a bit of it, so small files are hit too.
        """
        names = [name for name in sorted(self.files) if name.startswith(prefix) and self.files[name].data]
        if not names:
            return None
        name = self.rng.choice(names)
        data = self.files[name].data
        at, bit = self.rng.randrange(len(data)), self.rng.randrange(8)
        data[at] ^= 1 << bit
        self.outcomes["bit flipped"] += 1
        self.loop.note(f"flip {name} {at}.{bit}")
        return f"{name} {at}.{bit}"

    def _damage(self, name: str, file: _File) -> None:
        if not file.named and self.rng.random() < 0.5:
            self.outcomes["name lost"] += 1
            del self.files[name]
            return
        tail = len(file.data) - file.durable
        if tail:
            kind = self.rng.choice(("dropped", "kept", "torn", "zeros", "holes"))
            self.outcomes[kind] += 1
            self.loop.note(f"damage {name} {kind} {tail}")
            if kind == "dropped":
                del file.data[file.durable :]
            elif kind in ("torn", "zeros"):
                cut = file.durable + self.rng.randrange(tail)
                lost = len(file.data) - cut
                del file.data[cut:]
                if kind == "zeros":
                    file.data += bytes(lost)
            elif kind == "holes":
                self._punch(file)
        file.durable, file.named = len(file.data), True

    def _punch(self, file: _File) -> None:
        for start in range(file.durable, len(file.data), BLOCK_BYTES):
            if self.rng.random() < 0.5:
                end = min(start + BLOCK_BYTES, len(file.data))
                file.data[start:end] = bytes(end - start)


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
            found = self._platter.files.get(file)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", file)
            return bytes(found.data[offset : offset + length])

        return await self._run("read", (), read())

    async def append(self, writes: Sequence[Write], *, sync: bool = False) -> None:
        names = [name for name, _ in writes]

        async def append() -> None:
            for name, buffers in writes:
                await self._work()
                self._write(name, b"".join(buffers))
            if sync:
                await self._sync(names)

        await self._run("append", names, append())

    def _write(self, name: str, data: bytes) -> None:
        file = self._platter.files.setdefault(name, _File())
        fault = self._platter.take_fault("append")
        if fault is not None:
            file.data += data[: self._platter.rng.randrange(len(data) + 1)]
            raise OSError(fault, os.strerror(fault), name)
        file.data += data

    async def sync(self, files: Sequence[str]) -> None:
        await self._run("sync", files, self._sync(files))

    async def _sync(self, names: Sequence[str]) -> None:
        for name in names:
            file = self._platter.files.setdefault(name, _File())
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

    async def replace(self, file: str, data: bytes) -> None:
        async def replace() -> None:
            await self._work()
            await self._sleep(self._platter.sync_latency_s)
            self._platter.change(file, _File(bytearray(data), len(data), named=True))
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

        def release(_: asyncio.Task[T]) -> None:
            for name in changing:
                del self._busy[name]

        # Cancelling the caller does not stop a system call that has begun.
        task = asyncio.ensure_future(work)
        task.add_done_callback(release)
        return await asyncio.shield(task)
