"""Scalable topics on the wire: layouts, segments, seals, registrations and namespace watches."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.wire.java_m1 import HANDOVER_S
from anabranch.controller.ports.segments import Drained
from anabranch.metadata.records import NamespaceRecord, TopicRecord
from anabranch.model.drains import ALL
from anabranch.model.names import TopicName
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.commands import NO_ID, Delivery, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.storage import SlowStorage
from tests.harness.cluster import World
from tests.harness.wire import (
    batch,
    error_of,
    look_up,
    register_consumer,
    settle,
    single,
    values_of,
)

NAME = "topic://public/default/orders"
FIRST = "segment://public/default/orders/0000-ffff-0"
M1 = "Pulsar-Java-v5.0.0-M1"
"""A client that knows no buckets and does not ask again when a segment is busy."""


async def split(world: World, segment: int = 0) -> None:
    controller = await world.broker.controllers.controller(TopicName.parse(NAME))
    await controller.split(segment)


def states(update: pb.CommandScalableTopicUpdate) -> dict[int, int]:
    return {segment.segment_id: segment.state for segment in update.dag.segments}


async def test_a_lookup_makes_the_topic_and_tells_its_layout(world: World) -> None:
    client = await world.connect()
    update = await look_up(client)
    assert update.resolved_topic_name == NAME
    (segment,) = update.dag.segments
    assert (segment.hash_start, segment.hash_end, segment.state) == (0, 0xFFFF, pb.ACTIVE)
    assert list(segment.entry_bucket_splits) == [0x4000, 0x8000, 0xC000]
    assert update.dag.controller_broker_url == world.broker.url
    assert update.dag.segment_brokers[0].broker_url == world.broker.url


async def test_a_lookup_that_must_not_make_the_topic_does_not(world: World) -> None:
    client = await world.connect()
    assert (await look_up(client, create_if_missing=False)).error == pb.TopicNotFound
    assert (await look_up(client, "segment://public/default/x/0000-ffff-0")).error == pb.NotAllowedError
    assert (await look_up(client, "non-persistent://public/default/x")).error == pb.NotAllowedError
    assert (await look_up(client, "topic://nonsense")).error == pb.InvalidTopicName
    assert (await look_up(client, "persistent://public/default/x-partition-1")).error == pb.TopicNotFound
    assert not client.hung_up


@pytest.mark.parametrize("version", ["Anabranch-Test", "Pulsar-Java-v5.0.0-M1"])
@pytest.mark.parametrize("asked", [NAME, NAME.replace("topic://", "persistent://")])
async def test_a_lookup_of_a_topic_that_is_deleted_at_that_moment_is_answered(
    world: World, version: str, asked: str
) -> None:
    client = await world.connect(version=version)
    await world.broker.controllers.create_topic(TopicName.parse(NAME))
    records = world.broker.records
    load = records.load

    async def load_the_last_time(name: TopicName) -> TopicRecord:
        found = await load(name)
        records.load = load  # type: ignore[method-assign]
        await world.broker.controllers.delete_topic(name)
        return found

    records.load = load_the_last_time  # type: ignore[method-assign]
    assert (await look_up(client, asked, create_if_missing=False)).error == pb.TopicNotFound


@pytest.mark.parametrize(
    "allowed",
    [
        pytest.param(allowed, marks=pytest.mark.world(auto_create_topics=not allowed))
        for allowed in (True, False)
    ],
)
async def test_the_policy_of_a_namespace_decides_whether_a_lookup_makes_a_topic(
    world: World, allowed: bool
) -> None:
    policy = {"autoTopicCreationOverride": {"allowAutoTopicCreation": allowed}}
    await world.broker.records.namespaces.create_namespace("public/own", NamespaceRecord(policies=policy))
    client = await world.connect()
    default = await look_up(client)
    own = await look_up(client, "topic://public/own/orders", session=2)
    assert default.HasField("dag") != allowed
    assert own.HasField("dag") == allowed
    classic = await client.producer("persistent://public/own/lines")
    assert isinstance(classic, pb.CommandProducerSuccess) == allowed


@pytest.mark.world(auto_create_topics=False)
async def test_no_topic_is_made_by_looking_where_that_is_switched_off(world: World) -> None:
    client = await world.connect()
    assert (await look_up(client)).error == pb.TopicNotFound
    assert await world.broker.controllers.list_topics("public/default") == []


async def test_no_classic_topic_is_made_beside_a_scalable_one_by_writing_to_it(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    for name in ("persistent://public/default/orders", "persistent://public/default/orders-partition-0"):
        assert error_of(await client.producer(name)) == pb.NotAllowedError
        assert error_of(await client.subscribe(name)) == pb.NotAllowedError
    await client.producer("persistent://public/default/plain")
    other = await look_up(client, "topic://public/default/plain", session=2)
    assert other.error == pb.NotAllowedError
    assert await world.broker.classic.partitions(TopicName.parse("persistent://public/default/plain")) == 0


async def test_a_connection_that_only_watches_is_kept_while_nothing_happens(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default"))
    await client.expect(pb.CommandWatchScalableTopicsUpdate)
    await asyncio.sleep(3000)
    assert not client.hung_up
    await split(world)
    assert (await client.expect(pb.CommandScalableTopicUpdate)).dag.epoch == 1


async def test_a_classic_topic_has_a_layout_of_its_partitions(world: World) -> None:
    client = await world.connect()
    plain = await look_up(client, "persistent://public/default/plain")
    assert [s.legacy_topic_name for s in plain.dag.segments] == ["persistent://public/default/plain"]
    assert plain.resolved_topic_name == "topic://public/default/plain"
    name = TopicName.parse("persistent://public/default/parts")
    await world.broker.classic.create(name, partitions=3)
    parts = await look_up(client, str(name), session=2)
    assert [s.legacy_topic_name for s in parts.dag.segments] == [f"{name}-partition-{n}" for n in range(3)]
    assert not parts.dag.controller_broker_url


async def test_watchers_hear_of_a_split_and_closed_sessions_do_not(world: World) -> None:
    client, other = await world.connect(), await world.connect()
    await look_up(client)
    await look_up(other, "persistent://public/default/orders")
    other.send(pb.CommandScalableTopicClose(session_id=1))
    await settle()
    await split(world)
    update = await client.expect(pb.CommandScalableTopicUpdate)
    assert update.dag.epoch == 1
    assert states(update) == {0: pb.SEALED, 1: pb.ACTIVE, 2: pb.ACTIVE}
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
    world: World,
) -> None:
    slow, fast = await world.connect(), await world.connect()
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
        await split(world, segment)
        update = await fast.expect(pb.CommandScalableTopicUpdate)
        assert update.dag.epoch == segment // 2 + 1
        await world.broker.controllers.create_topic(TopicName.parse(f"topic://public/default/{segment}"))
        await asyncio.sleep(1)
    assert slow.inbox == []
    slow.pump.resume_reading()
    await settle()
    assert [update.dag.epoch for update in slow.has(pb.CommandScalableTopicUpdate)] == [10]
    (assigned,) = slow.has(pb.CommandScalableTopicAssignmentUpdate)
    assert len(assigned.assignment.segments) == 11
    (listed,) = slow.has(pb.CommandWatchScalableTopicsUpdate)
    assert len(listed.diff.added) == 10


async def test_a_segment_takes_entries_only_under_a_name_that_the_layout_lists(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    assert isinstance(await client.producer(FIRST), pb.CommandProducerSuccess)
    for bad in (
        "segment://public/default/orders/0000-7fff-0",
        "segment://public/default/orders/0000-7fff-1",
        "segment://public/default/absent/0000-ffff-0",
    ):
        assert error_of(await client.producer(bad, producer_id=2)) == pb.TopicNotFound
        assert error_of(await client.subscribe(bad)) == pb.TopicNotFound


async def test_an_entry_must_lie_within_one_bucket(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    await client.producer(FIRST)
    client.publish(b"fits", 0, hash_range=(0x4000, 0x7FFF))
    client.publish(b"does not", 1, hash_range=(0x3FFF, 0x4000))
    client.publish(b"unstamped", 2, key="k")
    mixed = MessageBatch()
    for number in range(16):
        mixed.add(b"of all buckets", f"key-{number}", 3 + number)
    client.publish(b"", 3, entry=mixed.build("p", 1), messages=16)
    await settle()
    answers = [c for c in client.inbox if isinstance(c, SendReceipt | pb.CommandSendError)]
    assert [c.sequence_id for c in answers] == [0, 1, 2, 3]
    assert isinstance(answers[1], pb.CommandSendError)
    assert answers[1].error == pb.NotAllowedError
    assert sum(isinstance(answer, SendReceipt) for answer in answers) == 3


async def test_a_seal_answers_what_it_took_then_closes_producers_and_swallows_the_rest(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    await client.producer(FIRST, producer_name="p")
    client.inbox.clear()
    splitting: asyncio.Future[None] | None = None
    for number in range(400):
        if number == 200:
            splitting = asyncio.ensure_future(split(world))
        client.publish(b"x", number)
        await asyncio.sleep(0.0001)
    assert splitting is not None
    await splitting
    await settle()
    order = [
        c for c in client.inbox if isinstance(c, SendReceipt | pb.CommandSendError | pb.CommandCloseProducer)
    ]
    closed = next(n for n, c in enumerate(order) if isinstance(c, pb.CommandCloseProducer))
    assert closed == len(order) - 1, "after CLOSE_PRODUCER nothing more is answered"
    receipts = [c.sequence_id for c in order if isinstance(c, SendReceipt)]
    assert len(receipts) == closed
    assert receipts == list(range(len(receipts)))
    assert 0 < len(receipts) < 400
    assert not client.hung_up
    again = await client.producer(FIRST, producer_name="p", epoch=1)
    assert error_of(again) == pb.TopicTerminatedError
    ask = [pb.KeyValue(key="anabranch.settle", value="true")]
    known = await client.producer(FIRST, producer_id=9, producer_name="p", metadata=ask)
    assert known.last_sequence_id == len(receipts) - 1


@pytest.mark.world(storage=SlowStorage)
async def test_a_message_during_a_slow_seal_is_neither_stored_nor_answered(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    await client.producer(FIRST, producer_name="p")
    segment = world.broker.logs.require(TopicName.parse(FIRST))
    await client.publish_all([b"a", b"b"])
    client.publish(b"c", 2)
    await asyncio.sleep(0.01)
    sealing = asyncio.ensure_future(segment.seal())
    await asyncio.sleep(0.001)
    client.publish(b"d", 3)
    assert error_of(await client.producer(FIRST, producer_id=2)) == pb.TopicTerminatedError
    await sealing
    await settle()
    kinds = [(type(c), getattr(c, "sequence_id", None)) for c in client.inbox]
    assert kinds == [(SendReceipt, 2), (pb.CommandCloseProducer, None)]
    assert segment.log.extent.next_ordinal == 3


async def test_a_sealed_segment_says_when_it_is_read_and_drained(world: World) -> None:
    client, cpp = await world.connect(), await world.connect(version="Pulsar-CPP-v3.13")
    await look_up(client)
    drained: list[Drained] = []
    world.broker.segments.on_drained(TopicName.parse(NAME), drained.append)
    await client.producer(FIRST)
    await client.subscribe(FIRST, "sub")
    await cpp.subscribe(FIRST, "other")
    await client.publish_all([b"a", b"b", b"c"])
    got = await client.deliveries(3)
    client.acknowledge(got[0], got[1])
    await split(world)
    await settle()
    assert client.has(pb.CommandReachedEndOfTopic) == []
    assert ("sub", ALL) not in [(event.subscription, event.ranges) for event in drained]
    client.acknowledge(got[2])
    await client.expect(pb.CommandReachedEndOfTopic)
    assert drained[-1] == Drained(TopicName.parse(FIRST), "sub", ALL)
    cpp.acknowledge(*await cpp.deliveries(3))
    await settle()
    assert cpp.has(pb.CommandReachedEndOfTopic) == [], "it would drop the connection"
    assert [event.subscription for event in drained if event.ranges == ALL] == ["sub", "other"]


async def test_a_segment_that_is_drained_already_says_so_when_it_is_sealed(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    drained: list[Drained] = []
    world.broker.segments.on_drained(TopicName.parse(NAME), drained.append)
    await client.subscribe(FIRST, "sub")
    await split(world)
    await client.expect(pb.CommandReachedEndOfTopic)
    await settle()
    assert [event.subscription for event in drained] == ["sub"]


async def test_a_reader_hears_the_end_when_it_got_everything(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    await client.producer(FIRST)
    await client.publish_all([b"a", b"b"])
    await split(world)
    await client.subscribe(FIRST, "reader-1", durable=False, permits=1)
    await settle()
    assert client.has(pb.CommandReachedEndOfTopic) == []
    client.flow(5)
    await settle()
    kinds = [type(c) for c in client.inbox if isinstance(c, Delivery | pb.CommandReachedEndOfTopic)]
    assert kinds == [Delivery, Delivery, pb.CommandReachedEndOfTopic]
    last = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert (last.first_index, last.next_index, last.sealed) == (0, 2, True)


async def test_a_subscription_on_a_segment_is_on_its_children_from_their_beginning(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    await client.subscribe(FIRST, "queue", pb.CommandSubscribe.Shared, earliest=False)
    await split(world)
    update = await client.take(lambda c: isinstance(c, pb.CommandScalableTopicUpdate) and c.dag.epoch == 1)
    assert states(update)[1] == pb.ACTIVE
    child = "segment://public/default/orders/0000-7fff-1"
    await client.producer(child)
    await client.publish_all([b"early"])
    await client.subscribe(child, "queue", pb.CommandSubscribe.Shared, consumer_id=2, earliest=False)
    assert values_of(await client.deliveries(1)) == [b"early"]


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_stream_consumers_are_assigned_segments_and_told_when_that_changes(world: World) -> None:
    one, two = await world.connect(), await world.connect()
    await look_up(one)
    first = await register_consumer(one, "a")
    assert [s.segment_topic for s in first.assignment.segments] == [FIRST]
    assert list(first.assignment.segments[0].bucket_ranges) == []
    second = await register_consumer(two, "b")
    update = await one.expect(pb.CommandScalableTopicAssignmentUpdate)
    shared = [*second.assignment.segments, *update.assignment.segments]
    assert {len(s.bucket_ranges) for s in shared} == {4}
    assert update.assignment.generation > first.assignment.generation
    left = await two.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    assert isinstance(left, pb.CommandSuccess)
    alone = await one.expect(pb.CommandScalableTopicAssignmentUpdate)
    assert [len(s.bucket_ranges) for s in alone.assignment.segments] == [0]


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_leave_that_overtakes_its_registration_leaves_no_member(world: World) -> None:
    client, other = await world.connect(), await world.connect()
    await look_up(client)
    await register_consumer(other, "b")
    client.send(
        pb.CommandScalableTopicSubscribe(
            request_id=1,
            topic=NAME,
            subscription="stream",
            consumer_name="a",
            consumer_id=7,
            consumer_type=pb.STREAM,
        )
    )
    client.send(pb.CommandScalableTopicUnsubscribe(consumer_id=7, request_id=2))
    await settle()
    controller = await world.broker.controllers.lead(TopicName.parse(NAME))
    assert list(controller.subscriptions()["stream"].consumers) == ["b"]
    answers = {c.request_id for c in client.has(pb.CommandSuccess)}
    assert 2 not in answers, "no end of a registration that never began is announced"
    assert not client.hung_up


@pytest.mark.world(auto_scale_interval_s=3600.0, consumer_grace_s=1.0)
async def test_the_surplus_of_clients_without_buckets_waits_for_a_segment_of_its_own(world: World) -> None:
    one, two = await world.connect(version=M1), await world.connect(version=M1)
    await look_up(one)
    first = await register_consumer(one, "a")
    assert [s.segment_topic for s in first.assignment.segments] == [FIRST]
    assert list((await register_consumer(two, "b")).assignment.segments) == []
    await settle()
    assert one.has(pb.CommandScalableTopicAssignmentUpdate) == []
    one.close()
    update = await two.expect(pb.CommandScalableTopicAssignmentUpdate)
    assert [len(s.bucket_ranges) for s in update.assignment.segments] == [0]


async def test_a_client_without_buckets_waits_until_the_former_reader_of_a_segment_is_gone(
    world: World,
) -> None:
    one, two, other = await world.connect(version=M1), await world.connect(version=M1), await world.connect()
    await look_up(one)
    assert isinstance(await one.subscribe(FIRST), pb.CommandSuccess)
    assert error_of(await other.subscribe(FIRST)) == pb.ConsumerBusy
    coming = asyncio.create_task(two.subscribe(FIRST))
    await settle()
    assert not coming.done()
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert isinstance(await coming, pb.CommandSuccess)
    one.send(
        pb.CommandSubscribe(
            topic=FIRST,
            subscription="sub",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=2,
            request_id=99,
        )
    )
    await asyncio.sleep(HANDOVER_S - 1)
    assert one.has(pb.CommandError) == []
    await asyncio.sleep(2)
    assert [answer.error for answer in one.has(pb.CommandError)] == [pb.ConsumerBusy]


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_registration_outlives_a_short_loss_of_its_connection(world: World) -> None:
    one, two = await world.connect(), await world.connect()
    await look_up(one)
    await register_consumer(one, "a")
    await register_consumer(two, "b")
    await settle()
    two.inbox.clear()
    one.close()
    await asyncio.sleep(30)
    assert two.has(pb.CommandScalableTopicAssignmentUpdate) == []
    one = await world.connect()
    assert (await register_consumer(one, "a")).assignment.segments
    one.close()
    await asyncio.sleep(61)
    assert two.has(pb.CommandScalableTopicAssignmentUpdate)


async def test_registering_with_a_topic_that_is_not_there_is_refused(world: World) -> None:
    client = await world.connect()
    assert (await register_consumer(client, "a")).error == pb.TopicNotFound
    assert (await register_consumer(client, "a" * 1025)).error == pb.NotAllowedError
    answer = await client.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    assert error_of(answer) == pb.ConsumerNotFound


async def test_a_namespace_watch_starts_with_all_topics_and_tells_what_changes(world: World) -> None:
    client = await world.connect()
    service = world.broker.controllers
    await service.create_topic(TopicName.parse("topic://public/default/a"), 1, {"team": "x"})
    await service.create_topic(TopicName.parse("topic://public/default/b"), 1, {"team": "y"})
    mine = [pb.KeyValue(key="team", value="x")]
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default"))
    client.send(pb.CommandWatchScalableTopics(watch_id=2, namespace="public/default", property_filters=mine))
    neither = [pb.KeyValue(key="team", value="y"), *mine]
    client.send(
        pb.CommandWatchScalableTopics(watch_id=3, namespace="public/default", property_filters=neither)
    )
    everything = await client.take(lambda c: getattr(c, "watch_id", None) == 1)
    filtered = await client.take(lambda c: getattr(c, "watch_id", None) == 2)
    nothing = await client.take(lambda c: getattr(c, "watch_id", None) == 3)
    assert list(everything.snapshot.topics) == ["topic://public/default/a", "topic://public/default/b"]
    assert list(filtered.snapshot.topics) == ["topic://public/default/a"]
    assert list(nothing.snapshot.topics) == []
    await service.create_topic(TopicName.parse("topic://public/default/c"), 1, {"team": "x"})
    await service.delete_topic(TopicName.parse("topic://public/default/a"))
    await settle()
    updates = client.has(pb.CommandWatchScalableTopicsUpdate)
    changes = [update.diff for update in updates if update.watch_id == 2]
    assert [name for diff in changes for name in diff.added] == ["topic://public/default/c"]
    assert [name for diff in changes for name in diff.removed] == ["topic://public/default/a"]
    client.inbox.clear()
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=1))
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=2))
    client.send(pb.CommandWatchScalableTopicsClose(watch_id=3))
    await settle()
    await service.delete_topic(TopicName.parse("topic://public/default/c"))
    await settle()
    assert client.inbox == []


async def test_a_namespace_watch_stays_silent_for_a_client_that_is_up_to_date(world: World) -> None:
    client = await world.connect()
    client.send(
        pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default", current_hash="00000000")
    )
    client.send(pb.CommandWatchScalableTopics(watch_id=2, namespace="nowhere"))
    client.send(pb.CommandWatchScalableTopics(watch_id=3, namespace="public/absent"))
    await settle()
    answers = {c.watch_id: c.error for c in client.has(pb.CommandWatchScalableTopicsUpdate)}
    assert answers == {2: pb.InvalidTopicName, 3: pb.TopicNotFound}


async def test_everything_is_there_again_after_a_restart(world: World) -> None:
    client = await world.connect()
    await look_up(client)
    await client.producer(FIRST)
    await client.subscribe(FIRST, "sub")
    client.publish(b"", 0, entry=batch([b"a", b"b"]), messages=2)
    client.publish(b"c", 2, entry=single(b"c", 2))
    await client.receipt()
    await client.receipt()
    got = await client.deliveries(2)
    await client.acknowledge_durably(got[0])
    await split(world)
    await world.restart()
    client = await world.connect()
    update = await look_up(client, create_if_missing=False)
    assert states(update) == {0: pb.SEALED, 1: pb.ACTIVE, 2: pb.ACTIVE}
    await client.subscribe(FIRST, "sub")
    left = await client.deliveries(1)
    assert values_of(left) == [b"c"]
    assert left[0].ledger != NO_ID
    client.acknowledge(*left)
    await client.expect(pb.CommandReachedEndOfTopic)
