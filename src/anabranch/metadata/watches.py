"""What the adapters share: the form of a key, and telling watchers on their own event loop.

Must not know how values are stored.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable

from anabranch.errors import InvalidNameError
from anabranch.metadata.store import Change

ROOT = "/"


def check_key(path: str) -> str:
    """Return `path` if it is `/part[/part...]`; a key that two adapters could read differently is refused."""
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\x00" in path:
        raise InvalidNameError(f"metadata key {path!r}: write it as /part/part, without empty parts")
    return path


def check_prefix(path: str) -> str:
    """As `check_key`, and `/` for everything; returned so that prefix + "/" begins each key below."""
    return "" if path == ROOT else check_key(path)


class _Watch:
    """One callback; a path that is already on its way to it is not queued again."""

    def __init__(self, prefix: str, changed: Callable[[Change], None]) -> None:
        self.prefix = prefix
        self.below = prefix + "/"
        self.changed = changed
        self.loop = asyncio.get_running_loop()
        # The callback runs as the one who watches, not as whoever made the change: simulated processes are
        # told apart by their context.
        self.context = contextvars.copy_context()
        self.pending: set[str] = set()
        self.active = True

    def tell(self, path: str) -> None:
        if path not in self.pending:
            self.pending.add(path)
            self.loop.call_soon(self._deliver, path, context=self.context)

    def _deliver(self, path: str) -> None:
        self.pending.discard(path)
        if self.active:
            self.changed(Change(path))


class Watches:
    """The watchers of one store."""

    def __init__(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, prefix: str, changed: Callable[[Change], None]) -> Callable[[], None]:
        """Watch at and below `prefix` from now on; the undo may be called twice."""
        watch = _Watch(check_prefix(prefix), changed)
        number = self._next
        self._next += 1
        self._watches[number] = watch

        def undo() -> None:
            watch.active = False
            self._watches.pop(number, None)

        return undo

    def announce(self, paths: Iterable[str]) -> None:
        """Tell whoever watches one of these keys."""
        for path in paths:
            for watch in self._watches.values():
                if path == watch.prefix or path.startswith(watch.below):
                    watch.tell(path)

    def announce_gap(self) -> None:
        """Some changes were missed: every watcher is told to read its whole prefix again."""
        for watch in self._watches.values():
            watch.tell(watch.prefix or ROOT)

    def clear(self) -> None:
        for watch in self._watches.values():
            watch.active = False
        self._watches.clear()
