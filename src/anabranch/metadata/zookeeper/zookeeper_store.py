"""The adapter for several machines: the metadata in ZooKeeper, which every Pulsar 4 cluster has.

The version of a key is the version of its znode, because ZooKeeper counts like the port: from 0 on, by one
with each write, and from 0 again after a deletion. A write that changes the session of a value deletes its
znode and creates it again in one transaction, with as many empty writes as its version needs.

An interrupted connection leaves the outcome of a write open: MetadataError, and the caller reads again.
`page` is not a snapshot, because ZooKeeper reads one znode at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from anabranch.errors import LimitExceededError, MetadataError, NotFoundError, VersionConflictError
from anabranch.metadata.store import ABSENT, Stored, Watches, check_key, check_prefix
from anabranch.metadata.zookeeper.zookeeper_client import WatchingClient
from anabranch.metadata.zookeeper.zookeeper_paths import (
    SEQUENCES,
    VALUES,
    Entries,
    Tree,
    ZookeeperAddress,
    is_behind,
)
from anabranch.metadata.zookeeper.zookeeper_session import (
    Ask,
    SessionEvents,
    ZookeeperOptions,
    ZookeeperSession,
    ZookeeperTls,
)

__all__ = ["ZookeeperOptions", "ZookeeperStore", "ZookeeperTls"]

VALUE_BYTES_MAX = 900_000
"""ZooKeeper closes the connection of a client whose request exceeds 1 MiB."""
ATTEMPTS = 100
"""A write that others overtook this often fails; each time another write succeeded."""
REWRITES_MAX = 4000
"""A value with more versions than this starts at 0 again when its session changes: 0.4 MB of writes."""
READS_AT_ONCE = 64
DEFAULTS = ZookeeperOptions()


class ZookeeperStore:
    """A metadata store in ZooKeeper, below the path of its address.

    `lost` is called on the event loop when the server ended the session: every ephemeral value of this
    process is gone, and a new session has no part in what the old one led. A leader must stop earlier, when
    `session_left_s` is 0: by then the server may have ended the session although no answer says so.
    """

    def __init__(
        self,
        url: str,
        options: ZookeeperOptions = DEFAULTS,
        *,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        address = ZookeeperAddress.parse(url)
        self.url = str(address)
        self._values = Tree(f"{address.path}/{VALUES}")
        self._sequences = Tree(f"{address.path}/{SEQUENCES}")
        self._watches = Watches()
        events = SessionEvents(self._changed, self._watches.announce_gap, lost)
        self._session = ZookeeperSession(address, options, self._values.root, events)

    @property
    def is_connected(self) -> bool:
        """Whether the connection to ZooKeeper stands, as far as this process knows."""
        return self._session.is_connected

    def session_left_s(self) -> float:
        """Seconds for which the session and its ephemeral values exist for certain, by the own clock.

        0 or less while the connection is interrupted, or when the server has not answered for the timeout of
        the session. A process that was stopped sees the lost time at once when it goes on.
        """
        return self._session.left_s()

    async def get(self, path: str) -> Stored | None:
        return await self._get(self._values.leaf(check_key(path)))

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        leaf = self._values.leaf(check_key(path))
        if len(value) > VALUE_BYTES_MAX:
            raise LimitExceededError(f"{path}: ZooKeeper keeps {VALUE_BYTES_MAX} bytes, not {len(value)}")
        for _ in range(ATTEMPTS):
            stat = await self._read(lambda client: client.exists_async(leaf))
            version = ABSENT if stat is None else stat.version
            if expected is not None and expected != version:
                raise VersionConflictError(f"{path} has version {version}, not {expected}")
            owner = self._session.id if ephemeral else 0
            try:
                written = await self._write(leaf, bytes(value), stat, owner)
            except (BadVersionError, NodeExistsError):
                continue
            except NoNodeError:
                if stat is None:
                    await self._make_directory(leaf)
                continue
            if written.ephemeralOwner == owner:
                return int(written.version)
            # Another session recreated the znode with the same version meanwhile: write it once more.
            expected = written.version
        raise MetadataError(f"{path}: {ATTEMPTS} attempts to write it were overtaken")

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        leaf = self._values.leaf(check_key(path))
        try:
            await self._session.call(
                lambda client: client.delete_async(leaf, -1 if expected is None else expected)
            )
        except NoNodeError as error:
            raise NotFoundError(f"{path} does not exist") from error
        except BadVersionError as error:
            raise VersionConflictError(f"{path} does not have version {expected}") from error
        await self._prune(leaf)

    async def children(self, path: str) -> list[str]:
        prefix = check_prefix(path)
        found = await self._entries(prefix)
        bare = sorted(found.directories - found.values)
        used = await self._each(bare, lambda name: self._has_values(f"{prefix}/{name}"))
        return sorted(found.values.union(name for name, is_used in zip(bare, used, strict=True) if is_used))

    async def page(self, path: str, after: str, limit: int) -> list[tuple[str, Stored]]:
        keys = self._keys(check_prefix(path), after)
        found: list[tuple[str, Stored]] = []
        while len(found) < limit:
            batch = [key async for key in _first(keys, min(limit - len(found), READS_AT_ONCE))]
            if not batch:
                break
            values = await self._each(batch, lambda key: self._get(self._values.leaf(key)))
            found += [(key, value) for key, value in zip(batch, values, strict=True) if value is not None]
        return found

    async def increment(self, path: str) -> int:
        leaf = self._sequences.leaf(check_key(path))
        for _ in range(ATTEMPTS):
            try:
                # ZooKeeper counts the writes of a znode; the first write makes version 1.
                stat = await self._session.call(lambda client: client.set_async(leaf, b""))
                return int(stat.version) - 1
            except NoNodeError:
                await self._make_directory(leaf)
                with suppress(NodeExistsError, NoNodeError):
                    await self._session.call(lambda client: client.create_async(leaf))
        raise MetadataError(f"{path}: {ATTEMPTS} attempts to create the sequence failed")

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        self._session.start()
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        self._watches.clear()
        await self._session.close()

    async def abandon(self) -> None:
        """Stop like a killed process: the session and its ephemeral values stay until its timeout."""
        self._watches.clear()
        await self._session.abandon()

    def _changed(self, znode: str) -> None:
        if (key := self._values.key(znode)) is not None:
            self._watches.announce([key])

    async def _read(self, ask: Ask) -> Any:
        """Read what was written before this call by any process, also on a server that lags behind."""

        def ask_the_leader(client: WatchingClient) -> Any:
            client.sync_async(self._values.root)
            return ask(client)

        return await self._session.call(ask_the_leader)

    async def _get(self, leaf: str) -> Stored | None:
        try:
            value, stat = await self._read(lambda client: client.get_async(leaf))
        except NoNodeError:
            return None
        return Stored(value, stat.version)

    async def _write(self, leaf: str, value: bytes, stat: Any, owner: int | None) -> Any:
        """Write the znode as `stat` describes it; returns its new state."""
        if stat is None:
            _, created = await self._session.call(
                lambda client: client.create_async(leaf, value, ephemeral=owner != 0, include_data=True)
            )
            return created
        if stat.ephemeralOwner == owner:
            return await self._session.call(lambda client: client.set_async(leaf, value, stat.version))
        version = stat.version + 1 if stat.version < REWRITES_MAX else 0

        def rewrite(transaction: Any) -> None:
            transaction.delete(leaf, stat.version)
            transaction.create(leaf, b"" if version else value, ephemeral=owner != 0)
            for number in range(version):
                transaction.set_data(leaf, value if number == version - 1 else b"")

        written = (await self._session.commit(rewrite))[-1]
        return written if version else stat._replace(version=0, ephemeralOwner=owner)

    async def _make_directory(self, leaf: str) -> None:
        above = leaf.rpartition("/")[0]
        with suppress(NoNodeError):
            await self._session.call(lambda client: client.ensure_path_async(above))

    async def _prune(self, leaf: str) -> None:
        """Remove the directories that a deletion left empty; a failure costs only their room."""
        above = leaf.rpartition("/")[0]
        with suppress(NotEmptyError, NoNodeError, MetadataError):
            while above != self._values.root:
                await self._session.call(lambda client, above=above: client.delete_async(above))  # type: ignore[misc]
                above = above.rpartition("/")[0]

    async def _entries(self, prefix: str) -> Entries:
        directory = self._values.directory(prefix)
        try:
            return Entries.of(await self._read(lambda client: client.get_children_async(directory)))
        except NoNodeError:
            return Entries(set(), set())

    async def _has_values(self, prefix: str) -> bool:
        """Whether a key below `prefix` exists; the end of a session leaves directories without any."""
        found = await self._entries(prefix)
        if found.values:
            return True
        for name in found.directories:
            if await self._has_values(f"{prefix}/{name}"):
                return True
        return False

    async def _keys(self, prefix: str, after: str) -> AsyncIterator[str]:
        """The keys below `prefix` that sort behind `after`, in order."""
        for name, is_directory in (await self._entries(prefix)).in_order():
            key = f"{prefix}/{name}"
            if not is_directory:
                if key > after:
                    yield key
            elif not is_behind(after, key + "/"):
                async for below in self._keys(key, after):
                    yield below

    async def _each(self, names: list[str], read: Callable[[str], Any]) -> list[Any]:
        """Read for each name, several at once."""
        found: list[Any] = []
        for start in range(0, len(names), READS_AT_ONCE):
            found += await asyncio.gather(*(read(name) for name in names[start : start + READS_AT_ONCE]))
        return found


async def _first(keys: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        try:
            yield await anext(keys)
        except StopAsyncIteration:
            return
