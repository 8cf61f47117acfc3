"""From a Spark cut to a client checkpoint and back, without gap or overlap."""

from __future__ import annotations

import pytest

from anabranch import AsyncCheckpointConsumer, AsyncClient, Batching, Checkpoint, MessageId
from anabranch.errors import InvalidConfigurationError
from anabranch.model.ids import EARLIEST, LATEST
from anabranch.model.ranges import HashRange
from anabranch.model.slot_positions import SlotPositions
from anabranch.spark.decide.source.handover import StoredPlace, checkpoint_from
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.handover import checkpoint_of, cut_of, cut_to_checkpoint
from tests.harness.cluster import TOPIC, Brokers
from tests.unit.spark.plans import split_once, topology


def test_passed_segments_are_at_their_end_and_later_ones_unnamed() -> None:
    layout = split_once().merge([1, 2], now_ms=0)
    view = topology(layout, s0=5, s1=3, s2=4, s3=2)
    entries = {1: StoredPlace(9, 3, 0), 2: StoredPlace(9, 1, 2)}
    found = checkpoint_from(TopicCut({1: 2, 2: 3}), view, entries)
    assert found.positions == {
        0: MessageId(0, *LATEST),
        1: MessageId(1, 9, 2),
        2: MessageId(2, 9, 1, 1),
    }
    assert [found.positions[id_].next_index for id_ in (1, 2)] == [2, 3]


def test_a_segment_at_its_beginning_has_read_nothing() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    found = checkpoint_from(TopicCut({0: 0}), view, {0: StoredPlace(9, 0, 0)})
    assert found.positions == {0: MessageId(0, *EARLIEST)}


async def filled(brokers: Brokers, client: AsyncClient) -> None:
    """A topic of three generations: one segment, two, and again one."""
    producer = await client.create_producer(TOPIC, batching=Batching(max_messages=7))
    controller = await brokers.controller()
    for generation in range(3):
        numbers = range(100 * generation, 100 * generation + 100)
        await producer.send_many([b"%d" % n for n in numbers], keys=[f"k{n % 13}" for n in numbers])
        if generation == 0:
            await controller.split(0)
        elif generation == 1:
            await controller.merge([1, 2])


async def receive(client: AsyncClient, start: Checkpoint, count: int) -> tuple[list[int], Checkpoint]:
    """Return so many messages from a checkpoint on, and the checkpoint behind them."""
    consumer: AsyncCheckpointConsumer[bytes] = await client.create_checkpoint_consumer(TOPIC, start=start)
    found: list[int] = []
    while len(found) < count:
        found += [int(m.data) for m in await consumer.receive_many(count - len(found), timeout=5)]
    reached = consumer.checkpoint()
    await consumer.close()
    return found, reached


@pytest.mark.parametrize("step", [1, 7, 29])
async def test_readers_hand_over_in_both_directions_without_gap_or_overlap(
    brokers: Brokers, step: int
) -> None:
    async with brokers.client() as client:
        await filled(brokers, client)
        start = Checkpoint.earliest()
        found: list[int] = []
        while len(found) < 300:
            some, reached = await receive(client, start, min(step, 300 - len(found)))
            found += some
            cut = await cut_of(client, TOPIC, reached)
            start = await checkpoint_of(client, TOPIC, cut)
            assert await cut_of(client, TOPIC, start) == cut
            if step == 1 and len(found) > 20:
                return
        assert sorted(found) == list(range(300))


async def test_a_checkpoint_without_indexes_is_converted_by_the_broker(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await filled(brokers, client)
        _, reached = await receive(client, Checkpoint.earliest(), 130)
        plain = Checkpoint(
            {
                id_: MessageId(id_, at.ledger, at.entry, at.batch_index)
                for id_, at in reached.positions.items()
            }
        )
        assert await cut_of(client, TOPIC, plain) == await cut_of(client, TOPIC, reached)


async def test_positions_by_bucket_become_the_lowest_of_them(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await filled(brokers, client)
        _, near = await receive(client, Checkpoint.earliest(), 10)
        _, far = await receive(client, Checkpoint.earliest(), 40)
        halves = SlotPositions.tiling(
            [
                (HashRange(0, 0x7FFF), near.positions[0]),
                (HashRange(0x8000, 0xFFFF), far.positions[0]),
            ]
        )
        shared = Checkpoint({}, parts={0: halves})
        assert (await cut_of(client, TOPIC, shared)).positions == {0: 10}


async def test_the_ends_of_a_topic_and_a_time_are_converted(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await filled(brokers, client)
        assert (await cut_of(client, TOPIC, Checkpoint.earliest())).positions == {0: 0}
        assert (await cut_of(client, TOPIC, Checkpoint.latest())).positions == {3: 100}
        assert (await cut_of(client, TOPIC, Checkpoint.at_ms(0))).positions == {0: 0}


def test_a_start_that_is_not_resolved_cannot_be_converted() -> None:
    with pytest.raises(InvalidConfigurationError, match="not resolved"):
        cut_to_checkpoint("pulsar://127.0.0.1:1", '{"v": 1, "starting": "latest"}')
