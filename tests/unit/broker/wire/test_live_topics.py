"""`non-persistent://` topics as a client sees them: delivered now, or dropped and counted."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.catalog.unused_live_topics import UnusedLiveTopics
from anabranch.broker.serving.log.live_log import LiveLog
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, batch, error_of, settle, value_of, values_of

LIVE = "non-persistent://public/default/ticks"
NAME = TopicName.parse(LIVE)


def served(brokers: Brokers, name: TopicName = NAME) -> LiveLog:
    found = brokers[0].logs.loaded(name)
    assert isinstance(found, LiveLog)
    return found


async def test_a_connected_consumer_gets_each_message_under_an_id_of_its_own(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.subscribe(LIVE, earliest=False)
    await client.producer(LIVE)
    receipts = await client.publish_all([b"a", b"b", b"c"])
    assert [(one.ledger, one.entry) for one in receipts] == [(0, 0)] * 3
    found = await client.deliveries(3)
    assert values_of(found) == [b"a", b"b", b"c"]
    ids = [(one.ledger, one.entry) for one in found]
    assert ids == sorted(set(ids))


async def test_messages_without_consumer_permits_or_subscription_are_dropped_and_counted(
    brokers: Brokers,
) -> None:
    client = await brokers.connect()
    await client.producer(LIVE)
    await client.publish_all([b"nobody"])
    assert served(brokers).messages_dropped == 1
    await client.subscribe(LIVE, permits=2)
    await client.publish_all([b"a", b"b", b"c", b"d"], first=1)
    assert values_of(await client.deliveries(2)) == [b"a", b"b"]
    assert served(brokers).subscriptions["sub"].counters.messages_dropped == 2
    client.flow(1)
    await client.publish_all([b"e"], first=5)
    assert values_of(await client.deliveries(1)) == [b"e"]
    assert served(brokers).messages_dropped == 3


async def test_a_consumer_that_does_not_read_fills_no_memory_and_delays_no_other(
    brokers: Brokers,
) -> None:
    slow, quick, sender = [await brokers.connect() for _ in range(3)]
    await slow.subscribe(LIVE, "slow", permits=10**6)
    await quick.subscribe(LIVE, "quick", permits=10**6)
    assert slow.pump is not None
    slow.pump.pause_reading()
    await sender.producer(LIVE)
    value = bytes(100_000)
    for number in range(100):
        await sender.publish_all([value], first=number)
    await quick.deliveries(100)
    subscription = served(brokers).subscriptions["slow"]
    assert subscription.counters.messages_dropped > 50
    slow.pump.resume_reading()
    await settle()
    await sender.publish_all([b"after"], first=100)
    assert (await slow.take(lambda c: isinstance(c, Delivery) and len(c.data) < 1000)).consumer_id == 1


async def test_a_batch_counts_with_all_its_messages(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.subscribe(LIVE, permits=3)
    await client.producer(LIVE)
    for first in (0, 3):
        client.publish(b"", first, entry=batch([b"a", b"b", b"c"], first), messages=3)
        await client.receipt()
    await client.deliveries(1)
    assert served(brokers).messages_dropped == 3
    assert served(brokers).totals()[0] == 6


async def test_a_new_subscription_gets_nothing_from_before(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(LIVE)
    await client.publish_all([b"before"])
    await client.subscribe(LIVE, earliest=True)
    await client.publish_all([b"after"], first=1)
    assert values_of(await client.deliveries(1)) == [b"after"]
    last = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert last.last_message_id.entryId == 2**64 - 1


async def test_acknowledgements_are_answered_and_change_nothing(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.subscribe(LIVE)
    await client.producer(LIVE)
    await client.publish_all([b"a", b"b"])
    first, second = await client.deliveries(2)
    assert not (await client.acknowledge_durably(first)).HasField("error")
    assert not (await client.acknowledge_durably(second, cumulative=True)).HasField("error")
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    await client.publish_all([b"c"], first=2)
    assert values_of(await client.deliveries(1)) == [b"c"]


async def test_only_the_active_consumer_of_a_failover_subscription_reads(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.subscribe(LIVE, kind=pb.CommandSubscribe.Failover, name="a")
    await two.subscribe(LIVE, kind=pb.CommandSubscribe.Failover, name="b")
    await one.producer(LIVE)
    await one.publish_all([b"1"])
    assert values_of(await one.deliveries(1)) == [b"1"]
    assert (await two.expect(pb.CommandActiveConsumerChange)).is_active is False
    await two.producer(LIVE, producer_id=2)
    one.close()
    assert (await two.expect(pb.CommandActiveConsumerChange)).is_active is True
    await two.publish_all([b"2"], producer_id=2)
    assert values_of(await two.deliveries(1)) == [b"2"]


async def test_an_exclusive_subscription_has_one_consumer(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.subscribe(LIVE)
    assert error_of(await two.subscribe(LIVE)) == pb.ConsumerBusy
    assert error_of(await two.subscribe(LIVE, kind=pb.CommandSubscribe.Shared)) == pb.ConsumerBusy


async def test_shared_consumers_take_turns_and_a_full_one_is_passed_over(brokers: Brokers) -> None:
    client = await brokers.connect()
    for number, permits in ((1, 1), (2, 100)):
        await client.subscribe(LIVE, kind=pb.CommandSubscribe.Shared, consumer_id=number, permits=permits)
    await client.producer(LIVE)
    await client.publish_all([b"%d" % n for n in range(5)])
    assert len(await client.deliveries(1, consumer_id=1)) == 1
    assert len(await client.deliveries(4, consumer_id=2)) == 4


@pytest.mark.parametrize("mode", [pb.AUTO_SPLIT, pb.STICKY])
async def test_a_key_goes_to_one_consumer_of_key_shared(brokers: Brokers, mode: int) -> None:
    client = await brokers.connect()
    halves = ((0, 0x7FFF), (0x8000, 0xFFFF))
    for number, (start, end) in enumerate(halves, 1):
        meta = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.ValueType(mode))
        if mode == pb.STICKY:
            meta.hashRanges.add(start=start, end=end)
        await client.subscribe(
            LIVE, kind=pb.CommandSubscribe.Key_Shared, consumer_id=number, keySharedMeta=meta
        )
    await client.producer(LIVE)
    for number in range(60):
        client.publish(b"k%d" % (number % 20), number, key=f"k{number % 20}")
    owners: dict[bytes, set[int]] = {}
    for found in await client.deliveries(60):
        owners.setdefault(value_of(found), set()).add(found.consumer_id)
    assert all(len(consumers) == 1 for consumers in owners.values())
    assert {consumer for consumers in owners.values() for consumer in consumers} == {1, 2}


async def test_exclusive_producers_exclude_others(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(LIVE, producer_access_mode=pb.Exclusive)
    assert error_of(await two.producer(LIVE)) == pb.ProducerBusy
    waiting = await two.producer(LIVE, producer_id=2, producer_access_mode=pb.WaitForExclusive)
    assert waiting.producer_ready is False
    one.close()
    assert (await two.expect(pb.CommandProducerSuccess)).producer_ready is True


async def test_a_repeated_sequence_id_is_passed_on_again(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.subscribe(LIVE)
    assert (await client.producer(LIVE, producer_name="p")).last_sequence_id == -1
    await client.publish_all([b"a"])
    await client.publish_all([b"again"])
    assert values_of(await client.deliveries(2)) == [b"a", b"again"]


async def test_compacted_readers_are_refused(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert error_of(await client.subscribe(LIVE, read_compacted=True)) == pb.NotAllowedError


async def partitions_of(client: WireClient, topic: str) -> int:
    answer = await client.request(pb.CommandPartitionedTopicMetadata(topic=topic, request_id=0))
    assert isinstance(answer, pb.CommandPartitionedTopicMetadataResponse)
    return answer.partitions


async def test_partitions_of_a_live_topic_are_topics_of_their_own(brokers: Brokers) -> None:
    client = await brokers.connect()
    await brokers[0].classic.create(NAME, 3)
    assert await partitions_of(client, LIVE) == 3
    assert error_of(await client.producer(LIVE)) == pb.NotAllowedError
    assert error_of(await client.producer(f"{LIVE}-partition-3")) == pb.TopicNotFound
    await client.subscribe(f"{LIVE}-partition-1")
    await client.producer(f"{LIVE}-partition-1")
    await client.publish_all([b"a"])
    (found,) = await client.deliveries(1)
    assert found.partition == 1


async def names_of(client: WireClient, mode: int) -> set[str]:
    command = pb.CommandGetTopicsOfNamespace(
        namespace="public/default", mode=pb.CommandGetTopicsOfNamespace.Mode.ValueType(mode), request_id=0
    )
    return set((await client.request(command)).topics)


async def test_each_scheme_has_its_own_list_and_names(brokers: Brokers) -> None:
    client = await brokers.connect()
    stored = LIVE.replace("non-persistent", "persistent")
    await client.producer(LIVE, producer_id=1)
    await client.producer(stored, producer_id=2)
    modes = pb.CommandGetTopicsOfNamespace
    assert await names_of(client, modes.NON_PERSISTENT) == {LIVE}
    assert await names_of(client, modes.PERSISTENT) == {stored}
    assert await names_of(client, modes.ALL) == {LIVE, stored}
    assert brokers[0].stores.names() == [stored]


async def test_a_topic_made_by_use_is_removed_when_no_client_uses_it(brokers: Brokers) -> None:
    broker = brokers[0]
    unused = UnusedLiveTopics(broker.classic, broker.logs, broker.records)
    kept = TopicName.parse("non-persistent://public/default/kept")
    await broker.classic.create(kept)
    client = await brokers.connect()
    await client.producer(LIVE)
    for _ in range(3):
        await unused.round()
    assert await broker.classic.list("public/default", "non-persistent") == [kept, NAME]
    client.close()
    await asyncio.sleep(60)
    assert broker.logs.loaded(NAME) is None
    for _ in range(2):
        await unused.round()
    assert await broker.classic.list("public/default", "non-persistent") == [kept]


@pytest.mark.brokers(count=2)
async def test_one_of_two_brokers_owns_a_live_topic(brokers: Brokers) -> None:
    clients = [await brokers.connect(number) for number in (0, 1)]
    for number in range(6):
        topic = f"{LIVE}{number}"
        owners = []
        for client in clients:
            await client.producer(topic, producer_id=number)
            found = await client.request(pb.CommandLookupTopic(topic=topic, request_id=0))
            owners.append(found.brokerServiceUrl)
        assert len(set(owners)) == 1
        loaded = [broker.logs.loaded(TopicName.parse(topic)) for broker in (brokers[0], brokers[1])]
        assert sum(log is not None for log in loaded) == 1
    for client in clients:
        client.close()
    await settle()
