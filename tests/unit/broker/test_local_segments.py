"""The controller's port over logs of this process."""

from __future__ import annotations

import pytest

from anabranch.controller.segments import Drained
from anabranch.errors import StaleTermError, TopicNotFoundError
from anabranch.model.names import TopicName
from tests.unit.broker.wire import World, run, settle

TOPIC = TopicName.parse("topic://public/default/orders")
SEGMENT = TopicName.parse("segment://public/default/orders/0000-ffff-7")


async def append(world: World, count: int) -> None:
    log = world.broker.topics.require(SEGMENT).log
    for number in range(count):
        log.append(b"x" * 100, 1, 1_000 + number, lambda appended, error: None)
    await log.flush()


def test_every_verb_may_be_repeated() -> None:
    async def scenario(world: World) -> None:
        segments = world.broker.segments
        for _ in range(2):
            await segments.create(SEGMENT, {"a": "earliest"}, 1)
        await append(world, 3)
        for _ in range(2):
            await segments.create_subscription(SEGMENT, "late", "latest", 1)
            await segments.create_subscription(SEGMENT, "early", "earliest", 1)
        assert [await segments.backlog(SEGMENT, sub) for sub in ("a", "late", "early", "none")] == [
            3,
            0,
            3,
            None,
        ]
        for _ in range(2):
            await segments.seal(SEGMENT, 1)
            await segments.delete_subscription(SEGMENT, "early", 1)
        assert await segments.backlog(SEGMENT, "early") is None
        for _ in range(2):
            await segments.delete(SEGMENT, 1)
        assert world.broker.topics.get(SEGMENT) is None
        assert await segments.backlog(SEGMENT, "a") is None

    run(scenario)


def test_an_older_term_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        segments = world.broker.segments
        await segments.create(SEGMENT, {"a": "earliest"}, 5)
        for refused in (
            segments.create(SEGMENT, {}, 4),
            segments.seal(SEGMENT, 4),
            segments.delete(SEGMENT, 4),
            segments.create_subscription(SEGMENT, "b", "latest", 4),
            segments.delete_subscription(SEGMENT, "a", 4),
            segments.seek(SEGMENT, "a", 0, 4),
            segments.skip_all(SEGMENT, "a", 4),
        ):
            with pytest.raises(StaleTermError):
                await refused
        segment = world.broker.topics.require(SEGMENT)
        assert not segment.sealed
        assert list(segment.subscriptions) == ["a"]

    run(scenario)


def test_sealing_what_is_not_there_is_an_error() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(TopicNotFoundError):
            await world.broker.segments.seal(SEGMENT, 1)

    run(scenario)


def test_seek_and_skip_move_a_subscription_and_pass_over_one_that_is_not_there() -> None:
    async def scenario(world: World) -> None:
        segments = world.broker.segments
        await segments.create(SEGMENT, {"a": "earliest"}, 1)
        await append(world, 10)
        await segments.seek(SEGMENT, "a", 1_006, 1)
        assert await segments.backlog(SEGMENT, "a") == 4
        await segments.seek(SEGMENT, "a", 0, 1)
        assert await segments.backlog(SEGMENT, "a") == 10
        await segments.skip_all(SEGMENT, "a", 1)
        assert await segments.backlog(SEGMENT, "a") == 0
        await segments.seek(SEGMENT, "unknown", 0, 1)
        await segments.skip_all(SEGMENT, "unknown", 1)

    run(scenario)


def test_a_sealed_segment_that_is_skipped_is_drained_and_after_a_seek_again() -> None:
    async def scenario(world: World) -> None:
        segments = world.broker.segments
        drained: list[Drained] = []
        undo = segments.on_drained(TOPIC, drained.append)
        await segments.create(SEGMENT, {"a": "earliest"}, 1)
        await append(world, 2)
        await segments.seal(SEGMENT, 1)
        await settle()
        assert drained == []
        await segments.skip_all(SEGMENT, "a", 1)
        await settle()
        assert drained == [Drained(SEGMENT, "a")]
        await segments.seek(SEGMENT, "a", 0, 1)
        await segments.skip_all(SEGMENT, "a", 1)
        await settle()
        assert len(drained) == 2
        undo()
        undo()
        await segments.seek(SEGMENT, "a", 0, 1)
        await segments.skip_all(SEGMENT, "a", 1)
        await settle()
        assert len(drained) == 2

    run(scenario)


def test_the_load_of_a_segment_has_rates_backlog_and_size() -> None:
    async def scenario(world: World) -> None:
        client = await world.client()
        name = "persistent://public/default/load"
        await client.producer(name)
        await client.subscribe(name)
        await client.publish_all([b"x"] * 100)
        await client.deliveries(100)
        load = await world.broker.segments.load(TopicName.parse(name))
        assert load.msg_rate_in == pytest.approx(10.0, rel=0.01)
        assert load.msg_rate_out == pytest.approx(10.0, rel=0.01)
        assert load.bytes_rate_in > 100
        assert load.backlog_messages == 100
        assert load.size_bytes > 1000
        await settle()
        assert (await world.broker.segments.load(SEGMENT)).msg_rate_in == 0.0

    run(scenario, load_report_interval_s=10.0)
