"""Facts for bulk readers beside tails: identities of logs, times of storing, pruned segments."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.errors import TopicNotFoundError
from anabranch.model.names import TopicName
from tests.harness.cluster import TOPIC, Brokers

CLASSIC = "persistent://public/default/classic"


async def send(brokers: Brokers, topic: str, count: int) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(topic)
        await producer.send_many([b"%d" % n for n in range(count)], keys=["k"] * count)
        await producer.close()


async def segment_name(brokers: Brokers, id_: int = 0) -> str:
    async with brokers.client() as client:
        layout = await client.layout(TOPIC)
        return layout.segment_topic(layout.layout.segment(id_))


async def test_a_log_keeps_its_identity_until_it_is_created_again(brokers: Brokers) -> None:
    await send(brokers, CLASSIC, 5)
    async with brokers.client() as client:
        tails = client.tails()
        first = (await tails.tail(CLASSIC)).log_id
        await send(brokers, CLASSIC, 5)
        assert (await tails.tail(CLASSIC)).log_id == first is not None
        await brokers[0].logs.drop(TopicName.parse(CLASSIC))
        await send(brokers, CLASSIC, 20)
        tails.forget(CLASSIC)
        tail = await tails.tail(CLASSIC)
        assert tail.next_index == 20
        assert tail.log_id != first
        with pytest.raises(TopicNotFoundError, match="created again"):
            await client.read_segment(CLASSIC, 0, 5, first).read()
        assert await client.read_segment(CLASSIC, 0, 5, tail.log_id).read()


async def test_messages_are_found_by_the_time_of_storing(brokers: Brokers) -> None:
    await send(brokers, TOPIC, 5)
    await asyncio.sleep(10)
    await send(brokers, TOPIC, 5)
    topic = await segment_name(brokers)
    async with brokers.client() as client:
        tails = client.tails()
        old, new = await tails.stored_at(topic, 4), await tails.stored_at(topic, 5)
        assert old is not None
        assert new is not None
        assert 9000 <= new - old <= 11_000
        assert [await tails.stored_after(topic, ms) for ms in (old - 1, old, new - 1, new)] == [0, 5, 5, 10]
        assert await tails.stored_at(topic, 10) is None


@pytest.mark.brokers(segment_retention_s=0.0)
async def test_a_layout_tells_the_final_positions_of_pruned_segments_if_asked(brokers: Brokers) -> None:
    await send(brokers, TOPIC, 5)
    controller = await brokers.controller()
    await controller.split(0)
    await controller.upkeep.prune()
    async with brokers.client() as client:
        plain, asked = await client.layout(TOPIC), await client.layout(TOPIC, with_pruned=True)
    assert 0 not in plain.layout.segments
    assert plain.layout.pruned == {}
    assert [(s.id, s.next_index, s.children) for s in asked.layout.pruned.values()] == [(0, 5, (1, 2))]
