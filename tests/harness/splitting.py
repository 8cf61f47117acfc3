"""A split between two messages of a key, through clients of any kind of server."""

from __future__ import annotations

from anabranch import AsyncAdminClient, AsyncClient


async def assert_order_through_a_split(client: AsyncClient, admin: AsyncAdminClient, topic: str) -> None:
    """Create a topic, split it between two messages of a key, and receive them in order."""
    await admin.create_topic(topic)
    consumer = await client.subscribe_stream(topic, "s", initial_position="earliest")
    producer = await client.create_producer(topic)
    await producer.send(b"before", key="k")
    await admin.split(topic, 0)
    await producer.send(b"after", key="k")
    for expected in (b"before", b"after"):
        message = await consumer.receive(timeout=60)
        assert message.data == expected
        await consumer.acknowledge_cumulative(message)
