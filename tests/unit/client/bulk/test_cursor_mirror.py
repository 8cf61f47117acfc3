"""The cursors of a subscription follow a reader that keeps its positions elsewhere."""

from __future__ import annotations

import pytest

from anabranch import Batching
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.cursor_mirror import AckPlace
from anabranch.errors import OperationTimeoutError
from tests.harness.cluster import TOPIC, Brokers


async def filled(brokers: Brokers, client: BulkClient) -> None:
    """A topic of two generations: 50 messages in segment 0, then 50 in its children."""
    producer = await client.create_producer(TOPIC, batching=Batching(max_messages=7))
    for generation in range(2):
        numbers = range(50 * generation, 50 * generation + 50)
        await producer.send_many([b"%d" % n for n in numbers], keys=[f"k{n % 13}" for n in numbers])
        if generation == 0:
            await (await brokers.controller()).split(0)


async def places(client: BulkClient, **positions: int) -> dict[int, AckPlace]:
    """The last messages before these positions; s0=5 means five messages of segment 0."""
    layout = await client.layout(TOPIC)
    found = {}
    for name, position in positions.items():
        id_ = int(name[1:])
        topic = layout.segment_topic(layout.layout.segment(id_))
        place = await client.tails().at_index(topic, position - 1)
        found[id_] = AckPlace(*place[1:])
    return found


async def cursors(client: BulkClient) -> dict[int, int]:
    layout = await client.layout(TOPIC)
    found = {}
    for id_, segment in layout.layout.segments.items():
        place = await client.tails().unacknowledged(layout.segment_topic(segment), "spark")
        assert place is not None
        found[id_] = place.index
    return found


async def test_cursors_stop_inside_an_entry(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await filled(brokers, client)
        mirror = await client.mirror_cursors(TOPIC, "spark", "spark")
        for position in (3, 7, 19):
            await mirror.follow(await places(client, s0=position), {0}, 5)
            assert await cursors(client) == {0: position, 1: 0, 2: 0}


async def test_cursors_pass_a_parent_and_go_on_in_its_children(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await filled(brokers, client)
        mirror = await client.mirror_cursors(TOPIC, "spark", "spark")
        await mirror.follow(await places(client, s0=50, s1=4, s2=3), {1, 2}, 5)
        assert await cursors(client) == {0: 50, 1: 4, 2: 3}
        await mirror.close()
        again = await client.mirror_cursors(TOPIC, "spark", "spark")
        await again.follow(await places(client, s0=50, s1=6, s2=3), {1, 2}, 5)
        assert await cursors(client) == {0: 50, 1: 6, 2: 3}


async def test_a_subscription_with_another_consumer_is_reported(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await filled(brokers, client)
        await client.subscribe_stream(TOPIC, "spark", initial_position="earliest")
        mirror = await client.mirror_cursors(TOPIC, "spark", "mirror")
        with pytest.raises(OperationTimeoutError, match="another consumer"):
            await mirror.follow(await places(client, s0=50, s1=4, s2=3), {1, 2}, 5)
