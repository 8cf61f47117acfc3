"""The part that all watches of names share: load after a change, compare, and send the difference."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.lookup import name_lists
from anabranch.broker.wire.pushes import PushKey
from anabranch.errors import AuthorizationError, MetadataError
from anabranch.metadata import records
from anabranch.model.names import parse_namespace
from anabranch.rights.needs import Need, Right

COALESCE_S = 0.05
"""Changes of a namespace within this time are sent together."""
RETRY_S = 0.5
"""Delay before a namespace that could not be read is read again."""


class NamesWatch(ABC):
    """One open watch; it loads names once at a time, so that no load overtakes another."""

    def __init__(self, connection: ServerConnection, key: PushKey, root: str, namespace: str) -> None:
        """`root` is the part of the metadata in which the records of the names lie."""
        tenant, local = parse_namespace(namespace)
        self.namespace = f"{tenant}/{local}"
        self._connection = connection
        self._key = key
        self._sent: dict[str, int] = {}
        self._loading = True
        self._load_again = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        path = records.namespace_path(root, self.namespace)
        self._depth = path.count("/") + 1
        self._undo: Callable[[], None] = connection.services.records.store.watch(path, self._changed)

    @property
    def need(self) -> Need:
        return Need(Right.USE_NAMESPACE, *parse_namespace(self.namespace))

    @abstractmethod
    async def _load(self) -> dict[str, int]:
        """Return the current names, each with a number that differs if the name was created again."""

    @abstractmethod
    def _send_first(self, names: list[str], known_hash: str | None) -> None:
        """Answer the client with all names, unless its hash shows that it knows them."""

    @abstractmethod
    def _send_diff(self, removed: list[str], added: list[str]) -> None:
        """Send a change that fits into one command."""

    @abstractmethod
    def refuse(self, error: AuthorizationError) -> None:
        """End the watch, because its role has lost its right."""

    async def open(self, known_hash: str | None) -> None:
        """Begin to send; a namespace that does not exist or cannot be read ends the watch with its error."""
        pushes = self._connection.pushes
        pushes.open_session(self._key, self)
        try:
            await self._connection.services.records.namespaces.load_namespace(self.namespace)
            await self._start(known_hash)
        except Exception:
            pushes.end_session(self._key)
            raise

    async def _start(self, known_hash: str | None) -> None:
        """Send all names, unless the client's hash shows that it knows them."""
        self._sent = await self._load()
        if self._stopped:
            return
        self._send_first(list(self._sent), known_hash)
        self._loading = False
        if self._load_again:
            self._load_when_writable()

    def stop(self) -> None:
        self._stopped = True
        self._undo()
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self, path: str) -> None:
        # Records of subscriptions lie deeper, and do not change the set of names.
        if path.count("/") <= self._depth:
            self._load_within(COALESCE_S)

    def _load_within(self, delay_s: float) -> None:
        if self._timer is None and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._load_when_writable)

    def _load_when_writable(self) -> None:
        self._timer = None
        self._connection.pushes.send(self._key, self._start_loading)

    def _start_loading(self) -> None:
        self._load_again = self._loading
        if not self._loading:
            self._loading = True
            self._connection.services.tasks.spawn(self._load_and_send())

    async def _load_and_send(self) -> None:
        try:
            await self._send_changes()
        except MetadataError:
            self._load_again = False
            self._load_within(RETRY_S)
        finally:
            self._loading = False
        if self._load_again:
            self._load_when_writable()

    async def _send_changes(self) -> None:
        now = await self._load()
        if self._stopped:
            return
        before, self._sent = self._sent, now
        # A topic that was deleted and created again counts as removed and added.
        added = [name for name, number in now.items() if before.get(name) != number]
        removed = [name for name, number in before.items() if now.get(name) != number]
        self._send_diffs(removed, added)

    def _send_diffs(self, removed: list[str], added: list[str]) -> None:
        """Send changes in commands that fit into a frame; removals first, because a name may be in both."""
        if len(self._lists([*removed, *added])) == 1:
            if removed or added:
                self._send_diff(removed, added)
            return
        for names in self._lists(removed) if removed else ():
            self._send_diff(names, [])
        for names in self._lists(added) if added else ():
            self._send_diff([], names)

    def _lists(self, names: list[str]) -> list[list[str]]:
        return name_lists(names, self._connection.services.config.max_message_bytes)
