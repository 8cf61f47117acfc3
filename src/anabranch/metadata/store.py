"""The port of the metadata store, and the checks of keys and the watchers that its adapters share.

Keys are `/`-separated paths whose parts are already encoded. Every key has a version that starts at 0 and
grows by one with each put; a deleted and recreated key starts at 0 again. Operations on one key are
linearizable.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from anabranch.errors import InvalidNameError

ABSENT = -1
"""As `expected`: the key must not exist yet."""
ROOT = "/"


class Stored(NamedTuple):
    """A value with the version that a compare-and-set needs."""

    value: bytes
    version: int


class MetadataStore(Protocol):
    """A small tree of versioned values with watches and sessions."""

    @property
    def url(self) -> str:
        """The address of the tree, for people: `scheme:` and where it is."""

    async def get(self, path: str) -> Stored | None: ...

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        """Store and return the new version.

        Raises VersionConflictError unless the stored version is `expected` (`ABSENT` for no value). An
        ephemeral value is removed when this store's session ends: by `close`, or when its lease runs out.
        """

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        """Remove the key; NotFoundError if absent, VersionConflictError if its version differs."""

    async def children(self, path: str) -> list[str]:
        """Sorted names of the direct children of `path`, including names that only have descendants."""

    async def page(self, path: str, after: str, limit: int) -> list[tuple[str, Stored]]:
        """The first `limit` keys below `path` that sort behind `after`, with their values, in order."""

    async def increment(self, path: str) -> int:
        """The next number of the sequence at `path`, from 0 on; no number is returned twice."""

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed` on the event loop with each changed path at or below `prefix`; returns the undo.

        The watcher reads the value again; several changes may be reported as one.
        """

    async def close(self) -> None:
        """End the session; its ephemeral values are removed."""


def check_key(path: str) -> str:
    """Return `path` if it is `/part[/part...]`; refuse keys that two adapters could read differently."""
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\x00" in path:
        raise InvalidNameError(f"metadata key {path!r}: write it as /part/part, without empty parts")
    return path


def check_prefix(path: str) -> str:
    """As `check_key`, but `/` is allowed and returned as ""; each key below starts with the result + "/"."""
    return "" if path == ROOT else check_key(path)


class _Watch:
    """One callback; a path that is already queued for it is not queued again."""

    def __init__(self, prefix: str, changed: Callable[[str], None]) -> None:
        self.prefix = prefix
        self.below = prefix + "/"
        self.changed = changed
        self.loop = asyncio.get_running_loop()
        # The callback runs in the context of the watcher, not of the writer, because the simulation tells
        # processes apart by their context.
        self.context = contextvars.copy_context()
        self.pending: set[str] = set()
        self.active = True

    def queue(self, path: str) -> None:
        if path not in self.pending:
            self.pending.add(path)
            self.loop.call_soon(self._deliver, path, context=self.context)

    def _deliver(self, path: str) -> None:
        self.pending.discard(path)
        if self.active:
            self.changed(path)


class Watches:
    """The watchers of one store."""

    def __init__(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Watch at and below `prefix`; returns the undo, which may be called twice."""
        watch = _Watch(check_prefix(prefix), changed)
        number = self._next
        self._next += 1
        self._watches[number] = watch

        def undo() -> None:
            watch.active = False
            self._watches.pop(number, None)

        return undo

    def announce(self, paths: Iterable[str]) -> None:
        """Call the watchers of these keys."""
        for path in paths:
            for watch in self._watches.values():
                if path == watch.prefix or path.startswith(watch.below):
                    watch.queue(path)

    def announce_gap(self) -> None:
        """Call every watcher with its prefix, because some changes were missed."""
        for watch in self._watches.values():
            watch.queue(watch.prefix or ROOT)

    def clear(self) -> None:
        for watch in self._watches.values():
            watch.active = False
        self._watches.clear()
