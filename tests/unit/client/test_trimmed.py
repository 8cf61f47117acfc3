"""A topic whose beginning was dropped while it was in use, as bulk readers and Spark see it."""

from __future__ import annotations

import asyncio

from anabranch import AsyncClient, Batching, Checkpoint
from anabranch.protocol.batches import decode_columns
from anabranch.spark.offsets import Cut, TopicCut
from anabranch.spark.planner import Tail, Topology, slices_between
from tests.unit.client.world import TOPIC, World, run

RETENTION_S = 100.0


async def publish(client: AsyncClient, lo: int, hi: int) -> str:
    """Publish numbers to a topic of one segment; returns the segment's name."""
    producer = await client.create_producer(TOPIC, batching=Batching(max_messages=7))
    await producer.send_many([b"%d" % n for n in range(lo, hi)], keys=["k"] * (hi - lo))
    await producer.close()
    layout = await client.layout(TOPIC)
    return layout.segment_topic(layout.layout.segment(0))


async def trimmed(world: World) -> str:
    """Messages 0 to 99 are old and gone, 100 to 149 are there."""
    async with world.client() as client:
        await publish(client, 0, 100)
        # A new process begins a new ledger, and so the old one can be dropped.
        world.kill()
        await asyncio.sleep(RETENTION_S)
        await world.start()
        topic = await publish(client, 100, 150)
        await asyncio.sleep(RETENTION_S - 10)
        return topic


def test_spark_is_told_what_was_trimmed_unread() -> None:
    async def test(world: World) -> None:
        topic = await trimmed(world)
        async with world.client() as client:
            found = await client.tails().tail(topic)
            assert (found.first_index, found.next_index) == (100, 150)
            view = Topology(
                (await client.layout(TOPIC)).layout, {0: Tail(found.first_index, found.next_index, False)}
            )
        told: list[str] = []
        start, end = (Cut({TOPIC: TopicCut({0: at})}) for at in (40, 150))
        slices = slices_between(start, end, {TOPIC: view}, told.append)
        assert [(part.lo, part.hi) for part in slices] == [(100, 150)]
        assert len(told) == 1

    run(test, segment_retention_s=RETENTION_S)


def test_a_bulk_reader_that_asks_for_trimmed_messages_gets_the_first_stored_under_their_own_index() -> None:
    async def test(world: World) -> None:
        topic = await trimmed(world)
        async with world.client() as client:
            entries = [entry async for entry in client.read_segment(topic, 40, 150)]
        assert entries[0].first_index == 100
        values = [value for entry in entries for value in decode_columns(entry.data, 2**20).values]
        assert values == [b"%d" % n for n in range(100, 150)]

    run(test, segment_retention_s=RETENTION_S)


def test_a_checkpoint_from_before_the_trim_goes_on_with_what_is_left() -> None:
    async def test(world: World) -> None:
        async with world.client() as client:
            await publish(client, 0, 10)
            early = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
            await early.receive_many(3)
            kept = early.checkpoint()
            await early.close()
        await trimmed(world)
        for start in (Checkpoint.earliest(), kept):
            async with world.client() as client:
                consumer = await client.create_checkpoint_consumer(TOPIC, start=start)
                got: list[bytes] = []
                while len(got) < 50:
                    got += [message.value for message in await consumer.receive_many(100)]
            assert got == [b"%d" % n for n in range(100, 150)]

    run(test, segment_retention_s=RETENTION_S)
