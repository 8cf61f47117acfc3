"""Watches of topic lists (64-67): the classic topics of a namespace whose names have a pattern.

Java's client takes the names of an update without another look at its pattern, so the broker matches them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.broker.catalog.classic_topics import log_names
from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.lookup import topics_hash
from anabranch.broker.wire.handlers.names_watch import NamesWatch
from anabranch.errors import AuthorizationError, NotAllowedError, TooManyRequestsError
from anabranch.metadata import records
from anabranch.model.name_patterns import NamePattern
from anabranch.protocol.pb import pulsar_pb2 as pb

PATTERN_MAX: Final = 200
"""Characters of a pattern; Pulsar's brokers take 50 by default."""
SLICE_S: Final = 0.005
"""Longest time that names are matched in one turn of the event loop."""
WATCHERS_MAX: Final = 100
"""Watches of topic lists on one connection; each reads its whole namespace after a change."""

_LIST: Final = "list"


class TopicListWatch(NamesWatch):
    """One watcher of one client."""

    def __init__(self, connection: ServerConnection, command: pb.CommandWatchTopicList) -> None:
        self._pattern = pattern_of(command.topics_pattern)
        self._request_id = command.request_id
        self._watcher_id = command.watcher_id
        super().__init__(connection, (_LIST, command.watcher_id), records.CLASSIC_TOPICS, command.namespace)

    def refuse(self, error: AuthorizationError) -> None:
        """End silently: the protocol has no command for it, and the client's next poll is refused."""

    async def _load(self) -> dict[str, int]:
        found: dict[str, int] = {}
        loop, topics = asyncio.get_running_loop(), self._connection.services.records
        began_s = loop.time()
        async for name, record in topics.walk_classic(self.namespace, "persistent"):
            if loop.time() > began_s + SLICE_S:
                await asyncio.sleep(0)
                began_s = loop.time()
            if self._pattern.matches(str(name).partition("://")[2]):
                # A name that was created again differs by its time of creation.
                found.update((str(log), record.created_at_ms) for log in log_names(name, record.partitions))
        return dict(sorted(found.items()))

    def _send_first(self, names: list[str], known_hash: str | None) -> None:
        digest = topics_hash(names)
        first, *rest = self._lists([] if known_hash == digest else names)
        self._connection.send(
            pb.CommandWatchTopicListSuccess(
                request_id=self._request_id, watcher_id=self._watcher_id, topic=first, topics_hash=digest
            )
        )
        for more in rest:
            self._send_diff([], more)

    def _send_diff(self, removed: list[str], added: list[str]) -> None:
        self._connection.send(
            pb.CommandWatchTopicUpdate(
                watcher_id=self._watcher_id,
                new_topics=added,
                deleted_topics=removed,
                topics_hash=topics_hash(list(self._sent)),
            )
        )


def pattern_of(text: str) -> NamePattern:
    """The pattern of a client, over names without scheme and number of the partition."""
    if len(text) > PATTERN_MAX:
        raise NotAllowedError(
            f"a pattern has at most {PATTERN_MAX} characters; poll the list of topics instead"
        )
    before, separator, rest = text.partition("://")
    return NamePattern(("^" if before.startswith("^") else "") + rest if separator else text)


async def watch_list(connection: ServerConnection, command: pb.CommandWatchTopicList) -> None:
    key = (_LIST, command.watcher_id)
    others = sum(isinstance(one, TopicListWatch) for one in connection.pushes.watches.values())
    if others >= WATCHERS_MAX and key not in connection.pushes.watches:
        raise TooManyRequestsError(f"a connection has at most {WATCHERS_MAX} watches of topic lists")
    watch = TopicListWatch(connection, command)
    await watch.open(command.topics_hash if command.HasField("topics_hash") else None)


def close_list(connection: ServerConnection, command: pb.CommandWatchTopicListClose) -> None:
    connection.pushes.end_session((_LIST, command.watcher_id))
    connection.send(pb.CommandSuccess(request_id=command.request_id))


HANDLERS = {
    pb.CommandWatchTopicList: CommandHandler(watch_list),
    pb.CommandWatchTopicListClose: CommandHandler(close_list),
}
