"""Methods about `persistent://` topics."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.admin.client import calls
from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, classic_topic, topics_in
from anabranch.admin.models.topics import (
    InternalStats,
    MessageIdBody,
    PartitionedMetadata,
    PartitionedTopicStats,
    StoredMessage,
    TopicStats,
)
from anabranch.arguments import mapped
from anabranch.errors import ConflictError, NotFoundError


class AsyncClassicMethods(AsyncHttpClient):
    """Methods about classic topics, with or without partitions."""

    async def classic_topics(self, namespace: str, *, timeout: float | None = None) -> list[str]:
        """Return the classic topics of a namespace; partitions are listed one by one.

        >>> await admin.create_classic_topic("persistent://public/default/events")
        >>> await admin.classic_topics("public/default")
        ['persistent://public/default/events']
        """
        return await self.send(calls.CLASSIC_TOPICS(topics_in("persistent", namespace)), timeout)

    async def create_classic_topic(
        self,
        topic: TopicLike,
        partitions: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Create a classic topic, with partitions if their number is not 0; ConflictError if it exists."""
        on = classic_topic(topic)
        if partitions:
            request = calls.CREATE_PARTITIONED_TOPIC(on, body=partitions)
        else:
            request = calls.CREATE_CLASSIC_TOPIC(on, body=mapped("properties", properties) or None)
        await self.send(request, timeout)

    async def delete_classic_topic(
        self, topic: TopicLike, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Delete a classic topic with all partitions; InvalidConfigurationError while it is in use."""
        on = classic_topic(topic)
        try:
            await self.send(calls.DELETE_CLASSIC_TOPIC(on, query={"force": force}), timeout)
        except ConflictError:
            # A topic with partitions is deleted at a path of its own.
            await self.send(calls.DELETE_PARTITIONED_TOPIC(on, query={"force": force}), timeout)

    async def partitions(self, topic: TopicLike, *, timeout: float | None = None) -> PartitionedMetadata:
        """Return the number of partitions, 0 without any, and the properties of a classic topic.

        >>> (await admin.partitions("events")).partitions
        0
        """
        return await self.send(calls.PARTITIONS(classic_topic(topic)), timeout)

    async def grow_partitions(
        self, topic: TopicLike, partitions: int, *, timeout: float | None = None
    ) -> None:
        """Raise the number of partitions; keys may go to other partitions afterwards."""
        await self.send(calls.GROW_PARTITIONS(classic_topic(topic), body=partitions), timeout)

    async def classic_stats(
        self,
        topic: TopicLike,
        *,
        publishers: bool = True,
        consumers: bool = True,
        earliest_in_backlog: bool = False,
        timeout: float | None = None,
    ) -> TopicStats:
        """Return the stats of a classic topic; sums for one with partitions.

        >>> (await admin.classic_stats("events")).msg_in_counter
        0
        """
        query = {
            "excludePublishers": not publishers,
            "excludeConsumers": not consumers,
            "getEarliestTimeInBacklog": earliest_in_backlog,
        }
        return await self.send(calls.CLASSIC_STATS(classic_topic(topic), query=query), timeout)

    async def partitioned_stats(
        self, topic: TopicLike, *, timeout: float | None = None
    ) -> PartitionedTopicStats:
        """Return the stats of a topic with partitions, and of each of them."""
        return await self.send(calls.PARTITIONED_STATS(classic_topic(topic)), timeout)

    async def internal_stats(self, topic: TopicLike, *, timeout: float | None = None) -> InternalStats:
        """Return the ledgers and cursors of a classic topic, or of one partition."""
        return await self.send(calls.INTERNAL_STATS(classic_topic(topic)), timeout)

    async def terminate(self, topic: TopicLike, *, timeout: float | None = None) -> MessageIdBody:
        """Let a classic topic accept no more messages; returns the id of its last one."""
        return await self.send(calls.TERMINATE(classic_topic(topic)), timeout)

    async def last_message_id(self, topic: TopicLike, *, timeout: float | None = None) -> MessageIdBody:
        """Return the id of the last message; entry -1 if there is none."""
        return await self.send(calls.LAST_MESSAGE_ID(classic_topic(topic)), timeout)

    async def backlog_size(
        self, topic: TopicLike, ledger_id: int = -1, entry_id: int = -1, *, timeout: float | None = None
    ) -> int:
        """Return the stored bytes behind a message; all bytes without one.

        >>> await admin.backlog_size("events")
        0
        """
        last = MessageIdBody(ledger_id=ledger_id, entry_id=entry_id)
        return await self.send(calls.BACKLOG_SIZE(classic_topic(topic), body=last), timeout)

    async def message_id_at(
        self, topic: TopicLike, timestamp_ms: int, *, timeout: float | None = None
    ) -> MessageIdBody:
        """Return the id of the first message published at or after a time, else that of the last message."""
        return await self.send(calls.MESSAGE_ID_AT(classic_topic(topic), str(timestamp_ms)), timeout)

    async def message(
        self, topic: TopicLike, ledger_id: int, entry_id: int, *, timeout: float | None = None
    ) -> StoredMessage:
        """Return the stored message with an id; NotFoundError if there is none."""
        request = calls.MESSAGE(classic_topic(topic), str(ledger_id), str(entry_id))
        return await self.send(request, timeout)

    async def peek(
        self, topic: TopicLike, subscription: str, count: int = 1, *, timeout: float | None = None
    ) -> list[StoredMessage]:
        """Return the first messages of the backlog of a subscription, which stay there.

        >>> await admin.create_subscription("persistent://public/default/events", "audit")
        >>> await admin.peek("events", "audit")
        []
        """
        found: list[StoredMessage] = []
        for number in range(1, count + 1):
            request = calls.PEEK(classic_topic(topic), subscription, str(number))
            try:
                found.append(await self.send(request, timeout))
            except NotFoundError:
                if number == 1 and subscription not in await self.subscriptions(topic, timeout=timeout):
                    raise
                break
        return found

    async def classic_properties(self, topic: TopicLike, *, timeout: float | None = None) -> dict[str, str]:
        """Return the properties of a classic topic."""
        return await self.send(calls.CLASSIC_PROPERTIES(classic_topic(topic)), timeout)

    async def set_classic_properties(
        self, topic: TopicLike, properties: Mapping[str, str], *, timeout: float | None = None
    ) -> None:
        """Change these properties of a classic topic; the others stay.

        >>> await admin.set_classic_properties("events", {"team": "sales"})
        >>> await admin.classic_properties("events")
        {'team': 'sales'}
        """
        body = mapped("properties", properties)
        await self.send(calls.SET_CLASSIC_PROPERTIES(classic_topic(topic), body=body), timeout)

    async def subscriptions(self, topic: TopicLike, *, timeout: float | None = None) -> list[str]:
        """Return the names of the subscriptions of a classic topic."""
        return await self.send(calls.SUBSCRIPTIONS(classic_topic(topic)), timeout)
