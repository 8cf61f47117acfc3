"""The subscription of queue consumers at the leader, when a Pulsar cluster holds the segments.

Queue consumers attach to segments without a registration. An Anabranch broker passes the first attachment,
a seek and the deletion on to the leader. Brokers of Apache Pulsar know no leader, so the client asks it.
"""

from __future__ import annotations

from anabranch.client.net.connection import address_of
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.protocol.pb import pulsar_pb2 as pb


class QueueSubscription:
    """The subscription of a topic whose layout names topics of Pulsar."""

    def __init__(self, pool: ConnectionPool, name: str) -> None:
        self._pool = pool
        self._name = name

    async def make(
        self,
        layout: TopicLayout,
        start: pb.CommandSubscribe.InitialPosition.ValueType,
        within_s: float,
    ) -> None:
        """Return when all segments have the subscription; one that exists stays where it is."""
        await self._pool.retry(
            lambda: self._ask(layout, pb.CommandScalableTopicSubscribe(initial_position=start)),
            f"subscribing to {layout.name}",
            within_s=within_s,
        )

    async def move(self, layout: TopicLayout, seek: pb.CommandSeek) -> None:
        """Move the subscription on all segments, or on the one that the command names."""
        await self._ask(layout, pb.CommandScalableTopicSubscribe(seek=seek))

    async def delete(self, layout: TopicLayout) -> None:
        """Delete the subscription; MetadataError while it has consumers."""
        await self._ask(layout, pb.CommandScalableTopicSubscribe(deletes=True))

    async def _ask(self, layout: TopicLayout, command: pb.CommandScalableTopicSubscribe) -> None:
        pool, url = self._pool, layout.controller_url
        connection = await (pool.connection(address_of(url)) if url else pool.any_connection())
        command.request_id = pool.next_id()
        command.topic = str(layout.name)
        command.subscription = self._name
        command.consumer_name = ""
        command.consumer_id = pool.next_id()
        command.consumer_type = pb.STREAM
        command.as_queue = True
        await connection.request(command, pb.CommandScalableTopicSubscribeResponse, pool.operation_timeout_s)
