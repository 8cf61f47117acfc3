"""Namespace watches (76-78): a snapshot of the topics first, then the topics that came and went."""

from __future__ import annotations

from typing import Any

from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.lookup import topics_hash
from anabranch.broker.wire.handlers.names_watch import NamesWatch
from anabranch.errors import AuthorizationError
from anabranch.metadata import records
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

_NAMESPACE = "namespace"


class NamespaceSession(NamesWatch):
    """One open namespace watch."""

    def __init__(self, connection: ServerConnection, command: pb.CommandWatchScalableTopics) -> None:
        self._watch_id = command.watch_id
        self._filters = {(pair.key, pair.value) for pair in command.property_filters}
        super().__init__(connection, (_NAMESPACE, command.watch_id), records.TOPICS, command.namespace)

    def refuse(self, error: AuthorizationError) -> None:
        self._send(error=code_for(error), message=str(error))

    def _send_first(self, names: list[str], known_hash: str | None) -> None:
        if known_hash is None or known_hash != topics_hash(names):
            first, *rest = self._lists(names)
            self._send(snapshot=pb.ScalableTopicsSnapshot(topics=first))
            self._send_diffs([], [name for names in rest for name in names])

    def _send_diff(self, removed: list[str], added: list[str]) -> None:
        self._send(diff=pb.ScalableTopicsDiff(added=added, removed=removed))

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
    session = NamespaceSession(connection, command)
    await session.open(command.current_hash if command.HasField("current_hash") else None)


def close_namespace(connection: ServerConnection, command: pb.CommandWatchScalableTopicsClose) -> None:
    connection.pushes.end_session((_NAMESPACE, command.watch_id))


HANDLERS = {
    pb.CommandWatchScalableTopics: CommandHandler(
        watch_namespace, refuse_with(pb.CommandWatchScalableTopicsUpdate, "watch_id")
    ),
    pb.CommandWatchScalableTopicsClose: CommandHandler(close_namespace),
}
