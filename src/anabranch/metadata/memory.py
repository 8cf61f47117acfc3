"""The reference adapter: a tree in memory that several stores can share.

A `MemoryTree` is the durable store; each `MemoryStore` on it is one process with a session. A simulated crash
ends the session with `expire` and keeps the tree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import NamedTuple

from anabranch.errors import AlreadyClosedError, NotFoundError, VersionConflictError
from anabranch.metadata.store import ABSENT, Stored, Watches, check_key, check_prefix


class _Value(NamedTuple):
    value: bytes
    version: int
    session: int | None


class MemoryTree:
    """Values and sequences that outlive the sessions on them."""

    def __init__(self) -> None:
        self.values: dict[str, _Value] = {}
        self.keys: list[str] = []
        self.sequences: dict[str, int] = {}
        self.stores: dict[int, MemoryStore] = {}
        self.sessions = 0

    def put(self, path: str, value: _Value) -> None:
        if path not in self.values:
            insort(self.keys, path)
        self.values[path] = value
        self._announce(path)

    def remove(self, path: str) -> None:
        del self.values[path]
        del self.keys[bisect_left(self.keys, path)]
        self._announce(path)

    def end_session(self, session: int) -> None:
        self.stores.pop(session, None)
        for path in [path for path, value in self.values.items() if value.session == session]:
            self.remove(path)

    def _announce(self, path: str) -> None:
        for store in self.stores.values():
            store.watches.announce([path])


class MemoryStore:
    """One session on a tree."""

    def __init__(self, tree: MemoryTree | None = None) -> None:
        self.tree = MemoryTree() if tree is None else tree
        self.watches = Watches()
        self.tree.sessions += 1
        self._session = self.tree.sessions
        self._open = True
        self.tree.stores[self._session] = self

    @property
    def url(self) -> str:
        return "memory:"

    async def get(self, path: str) -> Stored | None:
        self._check_open()
        found = self.tree.values.get(check_key(path))
        return None if found is None else Stored(found.value, found.version)

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        self._check_open()
        found = self.tree.values.get(check_key(path))
        version = ABSENT if found is None else found.version
        if expected is not None and expected != version:
            raise VersionConflictError(f"{path} has version {version}, not {expected}")
        self.tree.put(path, _Value(bytes(value), version + 1, self._session if ephemeral else None))
        return version + 1

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        self._check_open()
        found = self.tree.values.get(check_key(path))
        if found is None:
            raise NotFoundError(f"{path} does not exist")
        if expected is not None and expected != found.version:
            raise VersionConflictError(f"{path} has version {found.version}, not {expected}")
        self.tree.remove(path)

    async def children(self, path: str) -> list[str]:
        self._check_open()
        below = check_prefix(path) + "/"
        names: dict[str, None] = {}
        for key in self.tree.keys[bisect_left(self.tree.keys, below) :]:
            if not key.startswith(below):
                break
            names[key[len(below) :].partition("/")[0]] = None
        return sorted(names)

    async def page(self, path: str, after: str, limit: int) -> list[tuple[str, Stored]]:
        self._check_open()
        below, keys = check_prefix(path) + "/", self.tree.keys
        start = bisect_right(keys, max(below, after))
        found = [(key, self.tree.values[key]) for key in keys[start : start + limit] if key.startswith(below)]
        return [(key, Stored(value.value, value.version)) for key, value in found]

    async def increment(self, path: str) -> int:
        self._check_open()
        number = self.tree.sequences.get(check_key(path), 0)
        self.tree.sequences[path] = number + 1
        return number

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        self._check_open()
        return self.watches.add(prefix, changed)

    async def close(self) -> None:
        self.expire()

    def expire(self) -> None:
        """End the session as after a crash: remove its ephemeral values, and refuse later calls."""
        if self._open:
            self._open = False
            self.watches.clear()
            self.tree.end_session(self._session)

    def lapse(self) -> None:
        """End the session of a live process: remove its ephemeral values, and start a new session."""
        if self._open:
            self.tree.end_session(self._session)
            self.tree.sessions += 1
            self._session = self.tree.sessions
            self.tree.stores[self._session] = self

    def _check_open(self) -> None:
        if not self._open:
            raise AlreadyClosedError("the metadata store is closed")
