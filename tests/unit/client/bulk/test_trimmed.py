"""A topic whose oldest messages retention removed, as checkpoint consumers and bulk readers see it."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import AsyncClient, Batching, Checkpoint
from anabranch.errors import DataLossError
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.decide.source.offsets import Cut, TopicCut
from anabranch.spark.decide.source.slices import slices_between
from anabranch.spark.decide.source.topology import SegmentSpan, Topology
from tests.harness.cluster import TOPIC, Brokers, read_all

RETENTION_S = 100.0
pytestmark = pytest.mark.brokers(segment_retention_s=RETENTION_S)


async def publish(client: AsyncClient, lo: int, hi: int) -> str:
    """Publish numbers to a topic of one segment; returns the segment's name."""
    producer = await client.create_producer(TOPIC, batching=Batching(max_messages=7))
    await producer.send_many([b"%d" % n for n in range(lo, hi)], keys=["k"] * (hi - lo))
    await producer.close()
    layout = await client.layout(TOPIC)
    return layout.segment_topic(layout.layout.segment(0))


async def trimmed(brokers: Brokers) -> str:
    """Remove messages 0 to 99; messages 100 to 149 stay."""
    async with brokers.client() as client:
        await publish(client, 0, 100)
        # A restarted broker begins a new ledger, so retention can remove the old one.
        brokers.kill()
        await asyncio.sleep(RETENTION_S)
        await brokers.start()
        topic = await publish(client, 100, 150)
        await asyncio.sleep(RETENTION_S - 10)
        return topic


async def test_spark_learns_which_messages_were_trimmed_unread(brokers: Brokers) -> None:
    topic = await trimmed(brokers)
    async with brokers.client() as client:
        found = await client.tails().tail(topic)
        assert (found.first_index, found.next_index) == (100, 150)
        view = Topology(
            (await client.layout(TOPIC)).layout, {0: SegmentSpan(found.first_index, found.next_index, False)}
        )
    told: list[str] = []
    start, end = (Cut({TOPIC: TopicCut({0: at})}) for at in (40, 150))
    slices = slices_between(start, end, {TOPIC: view}, told.append)
    assert [(part.lo, part.hi) for part in slices] == [(100, 150)]
    assert len(told) == 1


async def test_a_bulk_reader_that_asks_for_trimmed_messages_gets_the_first_stored_under_their_own_index(
    brokers: Brokers,
) -> None:
    topic = await trimmed(brokers)
    async with brokers.client() as client:
        entries = await read_all(client.read_segment(topic, 40, 150))
    assert entries[0].first_index == 100
    values = [value for entry in entries for value in decode_columns(entry.data, 2**20).values]
    assert values == [b"%d" % n for n in range(100, 150)]


async def test_a_checkpoint_from_before_the_trim_raises_data_loss(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 10)
        early = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        unread = Checkpoint.from_bytes(early.checkpoint().to_bytes())
        await early.receive_many(3)
        kept = Checkpoint.from_bytes(early.checkpoint().to_bytes())
        await early.close()
    await trimmed(brokers)
    async with brokers.client() as client:
        consumer = await client.create_checkpoint_consumer(TOPIC, start=kept)
        for _ in range(2):
            with pytest.raises(DataLossError, match="107 messages of segment 0"):
                await consumer.receive(timeout=5)
        assert consumer.checkpoint() == kept, "a consumer that restores it raises again"
        for start, choice in (
            (Checkpoint.earliest(), True),
            (kept, False),
            # Such a start does not know which messages existed before.
            (unread, True),
        ):
            consumer = await client.create_checkpoint_consumer(TOPIC, start=start, fail_on_data_loss=choice)
            got: list[bytes] = []
            while len(got) < 50:
                got += [message.data for message in await consumer.receive_many(100)]
            assert got == [b"%d" % n for n in range(100, 150)]


async def test_a_checkpoint_behind_the_trimmed_messages_loses_nothing(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 100)
        read = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        await read.receive_many(100)
        latest = await client.create_checkpoint_consumer(TOPIC)
        starts = [Checkpoint.from_bytes(one.checkpoint().to_bytes()) for one in (read, latest)]
        await read.close()
        await latest.close()
    brokers.kill()
    await asyncio.sleep(RETENTION_S)
    await brokers.start()
    async with brokers.client() as client:
        await publish(client, 100, 150)
        await asyncio.sleep(RETENTION_S - 10)
        for start in starts:
            consumer = await client.create_checkpoint_consumer(TOPIC, start=start)
            got = [message.value for message in await consumer.receive_many(50, timeout=5)]
            assert got[0] == b"100"


async def test_a_checkpoint_that_needs_a_segment_that_is_gone_is_refused(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 10)
        consumer = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        await consumer.receive_many(3)
        part = consumer.checkpoint()
        controller = await brokers.controller()
        await controller.split(0)
        while await consumer.receive_many(10, timeout=1):
            pass
        whole = Checkpoint.from_bytes(consumer.checkpoint().to_bytes())
        assert sorted(whole.positions) == [0, 1, 2]
        slow = await client.create_checkpoint_consumer(TOPIC, start=part, receiver_queue_size=1)
        await slow.receive()
        await asyncio.sleep(RETENTION_S * 2)
        assert sorted((await brokers.controller()).layout.segments) == [1, 2]
        with pytest.raises(DataLossError, match="segment 0"):
            await slow.receive_many(100, timeout=1)
        with pytest.raises(DataLossError, match="segment 0"):
            await client.create_checkpoint_consumer(TOPIC, start=part)
        await client.create_checkpoint_consumer(TOPIC, start=part, fail_on_data_loss=False)
        restored = await client.create_checkpoint_consumer(TOPIC, start=whole)
        assert await restored.receive_many(10, timeout=1) == []
        assert await consumer.receive_many(10, timeout=1) == [], "the checkpoint covers all of the segment"


@pytest.mark.brokers(segment_retention_s=0.0)
async def test_a_segment_that_is_removed_while_a_reader_opens_is_no_loss(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, 0, 100)
        controller = await brokers.controller()
        await controller.split(0)
        await publish(client, 100, 150)
        brokers.ignored = frozenset([pb.CommandSubscribe])
        opening = asyncio.ensure_future(client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest()))
        await asyncio.sleep(0.5)
        brokers.ignored = frozenset()
        await controller.upkeep.prune()
        messages = await (await opening).receive_many(100, timeout=5)
        assert [int(message.data) for message in messages] == [*range(100, 150)]
