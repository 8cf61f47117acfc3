"""Failpoints, clocks and metadata sessions of simulated processes, with the faults they are known for.

Each implements the port that production code uses. Must not know what that code does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from anabranch.errors import MetadataError
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.metadata.store import Stored
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""Wall time at the start of every simulation."""


class SimClock:
    """A wall clock that may be wrong and jump; each process has its own."""

    def __init__(self, loop: SimLoop, *, offset_ms: int = 0) -> None:
        self._loop = loop
        self._offset_ms = offset_ms

    def wall_ms(self) -> int:
        return EPOCH_MS + self._offset_ms + int(self._loop.time() * 1000)

    def jump(self, by_ms: int) -> None:
        """Set the clock forward or back."""
        self._offset_ms += by_ms


class SimFailpoints:
    """Kills the process at a named step, and counts every reached step."""

    def __init__(self, process: SimProcess, kill_at: str | None, reached: Counter[str]) -> None:
        self._process = process
        self._kill_at = kill_at
        self._reached = reached

    async def reach(self, name: str) -> None:
        self._process.loop.note(f"failpoint {name}")
        self._reached[name] += 1
        if name == self._kill_at:
            self._reached[f"died at {name}"] += 1
            self._process.kill()
            # Nothing wakes a dead process, so this step is its last.
            await self._process.loop.create_future()


@dataclass(slots=True)
class StoreTrouble:
    """Probabilities that a call is refused, or applied with its answer lost.

    Watchers are notified up to `watch_late_s` late, sometimes twice; changes of one path that are close
    together may give one notification.
    """

    refuse: float = 0.0
    lose_reply: float = 0.0
    watch_late_s: float = 0.0
    watch_twice: float = 0.0

    def heal(self) -> None:
        self.refuse = self.lose_reply = self.watch_late_s = self.watch_twice = 0.0


class SimStore:
    """A session on a remote metadata tree: calls take time, fail, or are applied without an answer.

    The session of a killed process ends `lease_s` later. The session of a process that is paused for longer
    lapses: its ephemeral values are removed, but the process may use it again when it resumes.
    """

    def __init__(
        self,
        tree: MemoryTree,
        process: SimProcess,
        *,
        trouble: StoreTrouble | None = None,
        lease_s: float = 0.0,
    ) -> None:
        self._tree = tree
        self._inner = MemoryStore(tree)
        self._loop = process.loop
        self._process = process
        self._rng = process.loop.random(f"store {process.name} {tree.sessions}")
        self._trouble = trouble or StoreTrouble()
        self._lease_s = lease_s
        self._heard_at = process.loop.time()
        self.latency_s = (0.00005, 0.0015)
        self.lapses = 0
        """How often the lease expired while the process was alive."""
        self.url = self._inner.url
        process.on_death.append(self._expire_later)
        if lease_s:
            process.context.copy().run(self._beat)
            self._loop.outside(self._listen)

    def _beat(self) -> None:
        self._heard_at = self._loop.time()
        self._loop.call_later(self._lease_s / 3, self._beat)

    def _listen(self) -> None:
        if not self._process.alive:
            return
        if self.is_silent():
            self.lapse()
        self._loop.call_later(self._lease_s / 10, self._listen)

    def is_silent(self) -> bool:
        """Whether the process has not been heard for longer than its lease."""
        return self._loop.time() - self._heard_at > self._lease_s

    def lapse(self) -> None:
        """Remove the ephemeral values of the session, as if its lease had expired."""
        gone = [path for path, value in self._tree.values.items() if value.session == self._inner._session]
        self.lapses += bool(gone)
        for path in gone:
            self._loop.note(f"lapse {path}")
            self._tree.remove(path)

    def _expire_later(self) -> None:
        # The store outlives the process, so the callback must not belong to it.
        if self._lease_s:
            self._loop.outside(self._loop.call_later, self._lease_s, self._inner.expire)
        else:
            self._inner.expire()

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

    async def page(self, path: str, after: str, limit: int) -> list[tuple[str, Stored]]:
        return await self._call(self._inner.page(path, after, limit))

    async def increment(self, path: str) -> int:
        return await self._call(self._inner.increment(path))

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        late: dict[str, None] = {}
        undone = False

        def tell(path: str) -> None:
            late.pop(path, None)
            if not undone:
                changed(path)

        def told(path: str) -> None:
            if self._rng.random() < self._trouble.watch_twice:
                self._loop.call_later(self._rng.uniform(0, 0.1), tell, path)
            if not self._trouble.watch_late_s:
                changed(path)
            elif path not in late:
                late[path] = None
                self._loop.call_later(self._rng.uniform(0, self._trouble.watch_late_s), tell, path)

        # The store notifies the process of this session, also if the process that wrote has died.
        undo = self._process.context.copy().run(self._inner.watch, prefix, told)

        def stop() -> None:
            nonlocal undone
            undone = True
            undo()

        return stop

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
                # The call is applied; its answer takes time or is lost.
                await asyncio.sleep(self._rng.uniform(*self.latency_s))
                if self._rng.random() < self._trouble.lose_reply:
                    raise MetadataError("the answer of the metadata store was lost")
        finally:
            call.close()
