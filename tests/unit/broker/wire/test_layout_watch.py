"""Layouts on the wire: lookups, and watches of a layout."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.errors import TopicNotFoundError
from anabranch.metadata.records import NamespaceRecord, TopicRecord
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.segments import (
    NAME,
    segment_states,
    split_segment,
)
from tests.harness.wire import (
    error_of,
    look_up,
    register_consumer,
    settle,
)


async def test_a_lookup_makes_the_topic_and_tells_its_layout(brokers: Brokers) -> None:
    client = await brokers.connect()
    update = await look_up(client)
    assert update.resolved_topic_name == NAME
    (segment,) = update.dag.segments
    assert (segment.hash_start, segment.hash_end, segment.state) == (0, 0xFFFF, pb.ACTIVE)
    assert list(segment.entry_bucket_splits) == [0x4000, 0x8000, 0xC000]
    assert update.dag.controller_broker_url == brokers[0].url
    assert update.dag.segment_brokers[0].broker_url == brokers[0].url


async def test_a_lookup_that_must_not_make_the_topic_does_not(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert (await look_up(client, create_if_missing=False)).error == pb.TopicNotFound
    assert (await look_up(client, "segment://public/default/x/0000-ffff-0")).error == pb.NotAllowedError
    assert (await look_up(client, "non-persistent://public/default/x")).error == pb.NotAllowedError
    assert (await look_up(client, "topic://nonsense")).error == pb.InvalidTopicName
    assert (await look_up(client, "persistent://public/default/x-partition-1")).error == pb.TopicNotFound
    assert not client.hung_up


@pytest.mark.parametrize("version", ["Anabranch-Test", "Pulsar-Java-v5.0.0-M1"])
@pytest.mark.parametrize("asked", [NAME, NAME.replace("topic://", "persistent://")])
async def test_a_lookup_of_a_topic_that_is_deleted_at_that_moment_is_answered(
    brokers: Brokers, version: str, asked: str
) -> None:
    client = await brokers.connect(version=version)
    await brokers[0].controllers.create_topic(TopicName.parse(NAME))
    records = brokers[0].records
    load = records.load

    async def load_the_last_time(name: TopicName) -> TopicRecord:
        found = await load(name)
        records.load = load  # type: ignore[method-assign]
        await brokers[0].controllers.delete_topic(name)
        return found

    records.load = load_the_last_time  # type: ignore[method-assign]
    assert (await look_up(client, asked, create_if_missing=False)).error == pb.TopicNotFound


@pytest.mark.parametrize(
    "allowed",
    [
        pytest.param(allowed, marks=pytest.mark.brokers(auto_create_topics=not allowed))
        for allowed in (True, False)
    ],
)
async def test_the_policy_of_a_namespace_decides_whether_a_lookup_makes_a_topic(
    brokers: Brokers, allowed: bool
) -> None:
    policy = {"autoTopicCreationOverride": {"allowAutoTopicCreation": allowed}}
    await brokers[0].records.namespaces.create_namespace("public/own", NamespaceRecord(policies=policy))
    client = await brokers.connect()
    default = await look_up(client)
    own = await look_up(client, "topic://public/own/orders", session=2)
    assert default.HasField("dag") != allowed
    assert own.HasField("dag") == allowed
    classic = await client.producer("persistent://public/own/lines")
    assert isinstance(classic, pb.CommandProducerSuccess) == allowed


@pytest.mark.brokers(auto_create_topics=False)
async def test_no_topic_is_made_by_looking_where_that_is_switched_off(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert (await look_up(client)).error == pb.TopicNotFound
    assert await brokers[0].controllers.list_topics("public/default") == []


async def test_no_classic_topic_is_made_beside_a_scalable_one_by_writing_to_it(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    for name in ("persistent://public/default/orders", "persistent://public/default/orders-partition-0"):
        assert error_of(await client.producer(name)) == pb.NotAllowedError
        assert error_of(await client.subscribe(name)) == pb.NotAllowedError
    await client.producer("persistent://public/default/plain")
    other = await look_up(client, "topic://public/default/plain", session=2)
    assert other.error == pb.NotAllowedError
    assert await brokers[0].classic.partitions(TopicName.parse("persistent://public/default/plain")) == 0


async def test_a_connection_that_only_watches_is_kept_while_nothing_happens(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default"))
    await client.expect(pb.CommandWatchScalableTopicsUpdate)
    await asyncio.sleep(3000)
    assert not client.hung_up
    await split_segment(brokers)
    assert (await client.expect(pb.CommandScalableTopicUpdate)).dag.epoch == 1


async def test_a_classic_topic_has_a_layout_of_its_partitions(brokers: Brokers) -> None:
    client = await brokers.connect()
    plain = await look_up(client, "persistent://public/default/plain")
    assert [s.legacy_topic_name for s in plain.dag.segments] == ["persistent://public/default/plain"]
    assert plain.resolved_topic_name == "topic://public/default/plain"
    name = TopicName.parse("persistent://public/default/parts")
    await brokers[0].classic.create(name, partitions=3)
    parts = await look_up(client, str(name), session=2)
    assert [s.legacy_topic_name for s in parts.dag.segments] == [f"{name}-partition-{n}" for n in range(3)]
    assert not parts.dag.controller_broker_url


async def test_a_new_classic_topic_gets_the_partitions_of_its_namespace_when_a_client_opens_it(
    brokers: Brokers,
) -> None:
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    policies = NamespaceRecord(policies={"autoTopicCreationOverride": rule})
    await brokers[0].records.namespaces.create_namespace("public/own", policies)
    async with brokers.client() as client:
        producer = await client.create_producer("persistent://public/own/written")
        await producer.send(b"tea")
        consumer = await client.subscribe_queue("persistent://public/own/read", "s")
        assert await consumer.receive_many(1, timeout=1) == []
    for topic in ("written", "read"):
        name = TopicName.parse(f"persistent://public/own/{topic}")
        assert await brokers[0].classic.partitions(name) == 3


@pytest.mark.brokers(auto_create_topics=False)
async def test_a_producer_of_a_classic_topic_that_may_not_be_made_does_not_open(brokers: Brokers) -> None:
    async with brokers.client() as client:
        with pytest.raises(TopicNotFoundError, match="persistent://public/default/plain does not exist"):
            await client.create_producer("persistent://public/default/plain")
        with pytest.raises(TopicNotFoundError, match="namespace public/none does not exist"):
            await client.create_producer("persistent://public/none/plain")


async def test_a_client_that_opens_a_partition_is_told_which_topic_to_open(brokers: Brokers) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    await brokers[0].classic.create(name, partitions=3)
    async with brokers.client() as client:
        with pytest.raises(TopicNotFoundError, match="open persistent://public/default/parts instead"):
            await client.create_producer(f"{name}-partition-1")


async def test_watchers_hear_of_a_split_and_closed_sessions_do_not(brokers: Brokers) -> None:
    client, other = await brokers.connect(), await brokers.connect()
    await look_up(client)
    await look_up(other, "persistent://public/default/orders")
    other.send(pb.CommandScalableTopicClose(session_id=1))
    await settle()
    await split_segment(brokers)
    update = await client.expect(pb.CommandScalableTopicUpdate)
    assert update.dag.epoch == 1
    assert segment_states(update) == {0: pb.SEALED, 1: pb.ACTIVE, 2: pb.ACTIVE}
    parent, *children = update.dag.segments
    assert parent.sealed_at_epoch == 1
    for child in children:
        assert child.created_at_epoch == 1
        assert child.created_at_ms == parent.sealed_at_ms > 0
        assert not child.HasField("sealed_at_epoch")
        assert not child.HasField("sealed_at_ms")
    await settle()
    assert other.inbox == []


async def test_a_slow_watcher_delays_no_other_and_skips_to_the_newest_state(
    brokers: Brokers,
) -> None:
    slow, fast = await brokers.connect(), await brokers.connect()
    await look_up(slow)
    await look_up(fast)
    await register_consumer(slow, "a")
    slow.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default"))
    await fast.producer("persistent://public/default/heavy")
    await slow.subscribe("persistent://public/default/heavy", permits=1000)
    assert slow.pump is not None
    slow.pump.pause_reading()
    await fast.publish_all([b"x" * 50_000] * 100)
    await settle()
    slow.inbox.clear()
    for segment in range(0, 20, 2):
        await split_segment(brokers, segment)
        update = await fast.expect(pb.CommandScalableTopicUpdate)
        assert update.dag.epoch == segment // 2 + 1
        await brokers[0].controllers.create_topic(TopicName.parse(f"topic://public/default/{segment}"))
        await asyncio.sleep(1)
    assert slow.inbox == []
    slow.pump.resume_reading()
    await settle()
    assert [update.dag.epoch for update in slow.has(pb.CommandScalableTopicUpdate)] == [10]
    (assigned,) = slow.has(pb.CommandScalableTopicAssignmentUpdate)
    assert len(assigned.assignment.segments) == 11
    (listed,) = slow.has(pb.CommandWatchScalableTopicsUpdate)
    assert len(listed.diff.added) == 10
