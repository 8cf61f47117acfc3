"""Namespace watches (76-78): a snapshot of the topics first, then the topics that came and went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.lookup import name_lists, topics_hash
from anabranch.errors import AuthorizationError, MetadataError
from anabranch.metadata import records
from anabranch.model.names import parse_namespace
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for
from anabranch.rights.needs import Need, Right

COALESCE_S = 0.05
"""Changes of a namespace within this time are sent together."""
RETRY_S = 0.5
"""Delay before a namespace that could not be read is read again."""

_NAMESPACE = "namespace"


class NamespaceSession:
    """One open namespace watch; it loads topics once at a time, so that no load overtakes another."""

    def __init__(self, connection: ServerConnection, command: pb.CommandWatchScalableTopics) -> None:
        tenant, local = parse_namespace(command.namespace)
        self.namespace = f"{tenant}/{local}"
        self._connection = connection
        self._watch_id = command.watch_id
        self._filters = {(pair.key, pair.value) for pair in command.property_filters}
        self._sent: dict[str, int] = {}
        self._loading = True
        self._load_again = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        path = records.namespace_path(records.TOPICS, self.namespace)
        self._depth = path.count("/") + 1
        self._undo: Callable[[], None] = connection.services.records.store.watch(path, self._changed)

    @property
    def need(self) -> Need:
        return Need(Right.USE_NAMESPACE, *parse_namespace(self.namespace))

    async def start(self, current_hash: str | None) -> None:
        """Send all topics, unless the client's hash shows that it knows them."""
        self._sent = await self._load()
        names = list(self._sent)
        if self._stopped:
            return
        if current_hash is None or current_hash != topics_hash(names):
            first, *rest = self._lists(names)
            self._send(snapshot=pb.ScalableTopicsSnapshot(topics=first))
            self._send_diffs([], [name for names in rest for name in names])
        self._loading = False
        if self._load_again:
            self._load_when_writable()

    def stop(self) -> None:
        self._stopped = True
        self._undo()
        if self._timer is not None:
            self._timer.cancel()

    def refuse(self, error: AuthorizationError) -> None:
        self._send(error=code_for(error), message=str(error))

    def _changed(self, path: str) -> None:
        # Records of subscriptions lie deeper, and do not change the set of topics.
        if path.count("/") <= self._depth:
            self._load_within(COALESCE_S)

    def _load_within(self, delay_s: float) -> None:
        if self._timer is None and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._load_when_writable)

    def _load_when_writable(self) -> None:
        self._timer = None
        self._connection.pushes.send((_NAMESPACE, self._watch_id), self._start_loading)

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
        # A topic that was deleted and made again counts as removed and added.
        added = [name for name, incarnation in now.items() if before.get(name) != incarnation]
        removed = [name for name, incarnation in before.items() if now.get(name) != incarnation]
        self._send_diffs(removed, added)

    def _send_diffs(self, removed: list[str], added: list[str]) -> None:
        """Send changes in commands that fit into a frame; removals first, because a name may be in both."""
        if len(self._lists([*removed, *added])) == 1:
            if removed or added:
                self._send(diff=pb.ScalableTopicsDiff(added=added, removed=removed))
            return
        for names in self._lists(removed):
            self._send(diff=pb.ScalableTopicsDiff(removed=names))
        for names in self._lists(added):
            self._send(diff=pb.ScalableTopicsDiff(added=names))

    def _lists(self, names: list[str]) -> list[list[str]]:
        return name_lists(names, self._connection.services.config.max_message_bytes)

    def _send(self, **content: Any) -> None:
        self._connection.send(pb.CommandWatchScalableTopicsUpdate(watch_id=self._watch_id, **content))

    async def _load(self) -> dict[str, int]:
        found = await self._connection.services.records.load_all(self.namespace)
        return {
            str(name): record.incarnation
            for name, record in found
            if not record.deleted and self._filters <= record.properties.items()
        }


async def watch_namespace(connection: ServerConnection, command: pb.CommandWatchScalableTopics) -> None:
    key = (_NAMESPACE, command.watch_id)
    session = NamespaceSession(connection, command)
    connection.pushes.open_session(key, session)
    try:
        await connection.services.records.namespaces.load_namespace(session.namespace)
        await session.start(command.current_hash if command.HasField("current_hash") else None)
    except Exception:
        connection.pushes.end_session(key)
        raise


def close_namespace(connection: ServerConnection, command: pb.CommandWatchScalableTopicsClose) -> None:
    connection.pushes.end_session((_NAMESPACE, command.watch_id))


HANDLERS = {
    pb.CommandWatchScalableTopics: CommandHandler(
        watch_namespace, refuse_with(pb.CommandWatchScalableTopicsUpdate, "watch_id")
    ),
    pb.CommandWatchScalableTopicsClose: CommandHandler(close_namespace),
}
