"""The medium of one simulated store: its files outlive processes, and a power failure damages them."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from dataclasses import dataclass, field

from anabranch.ledger.disk import DiskFullError
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

BLOCK_BYTES = 512
"""The unit that a disk writes atomically."""


@dataclass(slots=True)
class PlatterFile:
    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    """The number of bytes at the start that survive a power failure."""
    named: bool = False
    """Whether the name survives a power failure."""

    def copy(self) -> PlatterFile:
        return PlatterFile(bytearray(self.data), self.durable, self.named)


class Platter:
    """The files of one store."""

    latency_s = (0.00005, 0.001)
    sync_latency_s = (0.0002, 0.003)

    def __init__(self, loop: SimLoop, name: str = "disk") -> None:
        self.loop = loop
        self.rng: random.Random = loop.random(f"disk {name}")
        self.files: dict[str, PlatterFile] = {}
        self.holder: SimProcess | None = None
        self.holder_name = ""
        self.outcomes: Counter[str] = Counter()
        self.faults: dict[str, list[int]] = {}
        """Error numbers for the next `append`, `sync` or `read` calls."""
        self.capacity_bytes = 2**50
        """Bytes that all files and the reserve may take together."""
        self.reserved_bytes = 0
        self.read_errors = 0.0
        """Share of reads that fail, as the seed decides."""
        # Files before changes that no sync made durable; None is a file that did not exist.
        self._before: dict[str, PlatterFile | None] = {}

    def fail_next(self, call: str, error: int = errno.EIO) -> None:
        """Let the next `append`, `sync` or `read` fail once."""
        self.faults.setdefault(call, []).append(error)

    def take_fault(self, call: str) -> int | None:
        waiting = self.faults.get(call)
        return waiting.pop(0) if waiting else None

    @property
    def free_bytes(self) -> int:
        used = self.reserved_bytes + sum(len(file.data) for file in self.files.values())
        return max(self.capacity_bytes - used, 0)

    def check_room(self, size_bytes: int) -> None:
        """Raise DiskFullError unless the disk has room for so many bytes."""
        if size_bytes > self.free_bytes:
            self.outcomes["disk full"] += 1
            raise DiskFullError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def change(self, name: str, new: PlatterFile | None) -> None:
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
        """Flip one bit, as a decaying disk does; return its place, or None if the files are empty.

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

    def _damage(self, name: str, file: PlatterFile) -> None:
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

    def _punch(self, file: PlatterFile) -> None:
        first = file.durable - file.durable % BLOCK_BYTES
        for block in range(first, len(file.data), BLOCK_BYTES):
            if self.rng.random() < 0.5:
                start, end = max(block, file.durable), min(block + BLOCK_BYTES, len(file.data))
                file.data[start:end] = bytes(end - start)
