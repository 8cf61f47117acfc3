"""The port of the metadata store, as controllers and brokers need it.

Keys are `/`-separated paths whose parts are already encoded. Every key has a version that starts at 0 and
grows by one with each put; a deleted and recreated key starts at 0 again. Operations on one key are
linearizable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

ABSENT = -1
"""As `expected`: the key must not exist yet."""


class Stored(NamedTuple):
    """A value with the version that a compare-and-set needs."""

    value: bytes
    version: int


class MetadataStore(Protocol):
    """A small tree of versioned values with watches and sessions."""

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

    async def increment(self, path: str) -> int:
        """The next number of the sequence at `path`, from 0 on; no number is returned twice."""

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed` on the event loop with each changed path at or below `prefix`; returns the undo.

        The watcher reads the value again; several changes may be reported as one.
        """

    async def close(self) -> None:
        """End the session; its ephemeral values are removed."""
