"""Failpoints, clocks and metadata sessions of simulated processes, with the faults they are known for.

Each stands behind the port that production code uses. They must not know what the code above them does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.errors import MetadataError
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.metadata.port import Change, Stored
from anabranch.testing.simloop import SimLoop, SimProcess

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""Wall time at the start of every simulation."""


class SimClock:
    """A wall clock that may be wrong, drift and jump; each process has its own."""

    def __init__(self, loop: SimLoop, *, offset_ms: int = 0, drift: float = 0.0) -> None:
        self._loop = loop
        self._offset_ms = offset_ms
        self._drift = drift

    def wall_ms(self) -> int:
        return EPOCH_MS + self._offset_ms + int(self._loop.time() * 1000 * (1 + self._drift))

    def jump(self, by_ms: int) -> None:
        """Set the clock forward or back."""
        self._offset_ms += by_ms


class SimFailpoints:
    """Kills the process at a named step; counts every step that was reached."""

    def __init__(
        self,
        process: SimProcess,
        kill_at: str | None = None,
        *,
        times: int = 1,
        machine: bool = False,
        reached: Counter[str] | None = None,
    ) -> None:
        self._process = process
        self._kill_at = kill_at
        self._left = times
        self._machine = machine
        self.reached: Counter[str] = Counter() if reached is None else reached

    async def reach(self, name: str) -> None:
        self._process.loop.note(f"failpoint {name}")
        self.reached[name] += 1
        if name != self._kill_at:
            return
        self._left -= 1
        if self._left == 0:
            self.reached[f"died at {name}"] += 1
            self._process.kill(machine=self._machine)
            # Nothing wakes a dead process, so this step is its last.
            await self._process.loop.create_future()


@dataclass(slots=True)
class StoreTrouble:
    """How likely a call is refused, and how likely its answer is lost after it was applied."""

    refuse: float = 0.0
    lose_reply: float = 0.0


class SimStore:
    """A session on a metadata tree that is some way off: calls take time, fail, or are applied unheard.

    The session of a killed process ends `lease_s` later, as the store would notice.
    """

    def __init__(
        self,
        tree: MemoryTree,
        process: SimProcess,
        *,
        trouble: StoreTrouble | None = None,
        lease_s: float = 0.0,
    ) -> None:
        self._inner = MemoryStore(tree)
        self._loop = process.loop
        self._rng = process.loop.random(f"store {process.name} {tree.sessions}")
        self._trouble = trouble or StoreTrouble()
        self.latency_s = (0.00005, 0.0015)
        process.on_death.append(lambda: self._expire_later(lease_s))

    def _expire_later(self, lease_s: float) -> None:
        def expire() -> None:
            self._inner.expire()

        # The store outlives the process: the callback must not carry the tag of the dead.
        if lease_s:
            self._loop.outside(self._loop.call_later, lease_s, expire)
        else:
            expire()

    async def get(self, path: str) -> Stored | None:
        return await self._call(self._inner.get(path))

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        return await self._call(self._inner.put(path, value, expected=expected, ephemeral=ephemeral))

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        await self._call(self._inner.delete(path, expected=expected))

    async def children(self, path: str) -> list[str]:
        return await self._call(self._inner.children(path))

    async def increment(self, path: str) -> int:
        return await self._call(self._inner.increment(path))

    def watch(self, prefix: str, changed: Callable[[Change], None]) -> Callable[[], None]:
        return self._inner.watch(prefix, changed)

    async def close(self) -> None:
        await self._inner.close()

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            await asyncio.sleep(self._rng.uniform(*self.latency_s))
            if self._rng.random() < self._trouble.refuse:
                raise MetadataError("the metadata store did not answer")
            try:
                return await call
            finally:
                # Applied, but the caller hears of it later, or never.
                await asyncio.sleep(self._rng.uniform(*self.latency_s))
                if self._rng.random() < self._trouble.lose_reply:
                    raise MetadataError("the answer of the metadata store was lost")
        finally:
            call.close()
