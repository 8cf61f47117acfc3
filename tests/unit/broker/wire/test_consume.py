"""SUBSCRIBE, FLOW and redelivery of the ordered and Shared types."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.serving.delivery.consumer import REGISTRATION_S
from anabranch.model.names import TopicName
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, WireClient, batch, error_of, settle, values_of

SHARED = pb.CommandSubscribe.Shared
FAILOVER = pb.CommandSubscribe.Failover


async def filled(brokers: Brokers, count: int = 10) -> WireClient:
    """A client that has published some entries."""
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % n for n in range(count)])
    return client


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


async def test_nothing_comes_before_permits_and_no_more_than_they_allow(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe(permits=0)
    await settle()
    assert client.has(Delivery) == []
    client.flow(3)
    assert values_of(await client.deliveries(3)) == numbers(0, 3)
    await settle()
    assert client.has(Delivery) == []
    client.flow(2)
    client.flow(2)
    assert values_of(await client.deliveries(4)) == numbers(3, 7)


async def test_permits_count_messages_and_a_batch_may_overdraw_them(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    for number in range(3):
        entry = batch([b"a", b"b", b"c"], 3 * number)
        client.publish(b"", 3 * number, entry=entry, messages=3)
        await client.receipt()
    await client.subscribe(permits=4)
    await client.deliveries(2)
    await settle()
    assert client.has(Delivery) == []
    client.flow(2)
    await settle()
    assert client.has(Delivery) == [], "two permits only pay back the overdraft"
    client.flow(1)
    await client.deliveries(1)


async def test_deliveries_carry_time_and_index_for_our_clients_only(brokers: Brokers) -> None:
    ours = await filled(brokers, 2)
    other = await brokers.connect(version="Pulsar-CPP-v3.13")
    await ours.subscribe(subscription="ours")
    await other.subscribe(subscription="other")
    first, second = await ours.deliveries(2)
    assert (first.index, second.index) == (0, 1)
    assert first.broker_timestamp is not None
    plain = (await other.deliveries(1))[0]
    assert (plain.index, plain.broker_timestamp, plain.partition) == (None, None, -1)


async def test_a_new_subscription_at_latest_sees_only_what_comes(brokers: Brokers) -> None:
    client = await filled(brokers, 3)
    await client.subscribe(earliest=False)
    await client.publish_all([b"new"], first=3)
    assert values_of(await client.deliveries(1)) == [b"new"]


async def test_a_second_exclusive_consumer_is_turned_away_until_the_first_is_gone(brokers: Brokers) -> None:
    one, two = await filled(brokers), await brokers.connect()
    await one.subscribe()
    assert error_of(await two.subscribe()) == pb.ConsumerBusy
    assert error_of(await two.subscribe(kind=SHARED)) == pb.ConsumerBusy
    one.close()
    await settle()
    await two.subscribe(kind=SHARED)
    await two.deliveries(10)


async def test_unacknowledged_entries_come_again_to_the_next_consumer(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe()
    got = await client.deliveries(10)
    await client.acknowledge_durably(got[0], got[1], got[4])
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
    await client.subscribe(consumer_id=2)
    again = await client.deliveries(7)
    assert values_of(again) == [b"2", b"3", b"5", b"6", b"7", b"8", b"9"]
    assert {d.redelivery_count for d in again} == {0}


async def test_a_full_redelivery_starts_at_the_first_unacknowledged_entry_with_the_new_epoch(
    brokers: Brokers,
) -> None:
    client = await filled(brokers)
    await client.subscribe(consumer_epoch=0)
    got = await client.deliveries(10)
    assert {d.consumer_epoch for d in got} == {0}
    client.acknowledge(got[0], got[1])
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, consumer_epoch=1))
    again = await client.deliveries(8)
    assert values_of(again) == numbers(2, 10)
    assert {(d.consumer_epoch, d.redelivery_count) for d in again} == {(1, 0)}


async def test_shared_consumers_take_turns_and_each_entry_goes_to_one(brokers: Brokers) -> None:
    one, two = await filled(brokers, 200), await brokers.connect()
    await one.subscribe(kind=SHARED, permits=0)
    await two.subscribe(kind=SHARED, permits=0, consumer_id=2)
    one.flow(100)
    two.flow(100, 2)
    first, second = await one.deliveries(100), await two.deliveries(100)
    assert sorted(values_of(first + second)) == sorted(numbers(0, 200))


async def test_a_lower_priority_consumer_gets_only_what_the_higher_cannot_take(brokers: Brokers) -> None:
    one, two = await filled(brokers, 20), await brokers.connect()
    await two.subscribe(kind=SHARED, permits=0, consumer_id=2, priority_level=1)
    await one.subscribe(kind=SHARED, permits=0, priority_level=0)
    two.flow(100, 2)
    one.flow(100)
    await settle()
    before = len(two.has(Delivery))
    await one.publish_all(numbers(20, 30), first=20)
    await settle()
    assert len(two.has(Delivery)) == before
    assert len(one.has(Delivery)) == 30 - before


async def test_a_redelivered_entry_counts_and_comes_before_fresh_ones(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe(kind=SHARED, permits=5)
    got = await client.deliveries(5)
    again = [pb.MessageIdData(ledgerId=d.ledger, entryId=d.entry) for d in (got[3], got[1])]
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=again))
    client.flow(4)
    more = await client.deliveries(4)
    assert values_of(more) == [b"1", b"3", b"5", b"6"]
    assert [d.redelivery_count for d in more] == [1, 1, 0, 0]


async def test_entries_of_a_lost_consumer_go_to_the_others_in_order_and_uncounted(brokers: Brokers) -> None:
    one, two = await filled(brokers), await brokers.connect()
    await one.subscribe(kind=SHARED, permits=6)
    await one.deliveries(6)
    await two.subscribe(kind=SHARED, consumer_id=2, permits=2)
    await two.deliveries(2)
    one.close()
    await settle()
    two.flow(100, 2)
    more = await two.deliveries(8)
    assert values_of(more) == [*numbers(0, 6), b"8", b"9"]
    assert {d.redelivery_count for d in more} == {0}


@pytest.mark.brokers(max_unacked_per_consumer=10)
async def test_dispatch_stops_at_the_limit_of_unacknowledged_messages_and_resumes_at_half(
    brokers: Brokers,
) -> None:
    client = await filled(brokers, 30)
    await client.subscribe(kind=SHARED, permits=100)
    got = await client.deliveries(10)
    await settle()
    assert client.has(Delivery) == []
    client.acknowledge(*got[:4])
    await settle()
    assert client.has(Delivery) == []
    client.acknowledge(got[4])
    await client.deliveries(5)
    await settle()
    assert client.has(Delivery) == []


@pytest.mark.brokers(max_unacked_per_subscription=20)
@pytest.mark.parametrize("kind", [SHARED, pb.CommandSubscribe.Key_Shared], ids=["Shared", "Key_Shared"])
async def test_the_limit_over_all_consumers_holds_too(brokers: Brokers, kind: int) -> None:
    one, two = await filled(brokers, 50), await brokers.connect()
    await one.subscribe(kind=kind, permits=100)
    await two.subscribe(kind=kind, permits=100, consumer_id=2)
    await settle()
    assert len(one.has(Delivery)) + len(two.has(Delivery)) == 20
    one.acknowledge(*one.has(Delivery))
    two.acknowledge(*two.has(Delivery), consumer_id=2)
    await settle()
    assert len(one.has(Delivery)) + len(two.has(Delivery)) == 40


async def test_failover_announces_the_active_consumer_and_moves_on_when_it_leaves(brokers: Brokers) -> None:
    one, two = await filled(brokers), await brokers.connect()
    await two.subscribe(kind=FAILOVER, consumer_id=2, name="b", permits=0)
    assert (await two.expect(pb.CommandActiveConsumerChange)).is_active
    await one.subscribe(kind=FAILOVER, name="a")
    assert (await one.expect(pb.CommandActiveConsumerChange)).is_active
    assert not (await two.expect(pb.CommandActiveConsumerChange)).is_active
    two.flow(100, 2)
    got = await one.deliveries(10)
    await one.acknowledge_durably(got[3], cumulative=True)
    assert two.has(Delivery) == []
    one.close()
    assert (await two.expect(pb.CommandActiveConsumerChange)).is_active
    assert values_of(await two.deliveries(6)) == numbers(4, 10)


async def test_the_active_consumer_is_announced_with_its_first_permits(brokers: Brokers) -> None:
    """The Go client drops the news of a consumer that it registers only after SUCCESS."""
    client = await brokers.connect()
    await client.subscribe(kind=FAILOVER, permits=0)
    await settle()
    assert client.has(pb.CommandActiveConsumerChange) == []
    client.flow(1)
    assert (await client.expect(pb.CommandActiveConsumerChange)).is_active


async def test_the_active_consumer_is_announced_also_without_permits(brokers: Brokers) -> None:
    client, standby = await brokers.connect(), await brokers.connect()
    await client.subscribe(kind=FAILOVER, permits=0)
    await standby.subscribe(kind=FAILOVER, permits=0, name="d")
    await asyncio.sleep(REGISTRATION_S + 0.1)
    assert [news.is_active for news in client.has(pb.CommandActiveConsumerChange)] == [True]
    assert [news.is_active for news in standby.has(pb.CommandActiveConsumerChange)] == [False]


async def test_a_consumer_that_left_early_hears_no_news(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.subscribe(kind=FAILOVER, permits=0)
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
    await asyncio.sleep(REGISTRATION_S + 0.1)
    assert client.has(pb.CommandActiveConsumerChange) == []


async def test_a_delayed_entry_waits_on_shared_and_does_not_on_exclusive(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    soon_ms = 1_700_000_000_000 + 60_000
    client.publish(b"later", 0, deliver_at_ms=soon_ms)
    client.publish(b"now", 1)
    await client.receipt()
    await client.receipt()
    await client.subscribe(subscription="exclusive")
    assert values_of(await client.deliveries(2)) == [b"later", b"now"]
    await client.subscribe(subscription="shared", kind=SHARED, consumer_id=2)
    assert values_of(await client.deliveries(1)) == [b"now"]
    await settle()
    assert client.has(Delivery) == []

    await asyncio.sleep(60)
    assert values_of(await client.deliveries(1)) == [b"later"]


async def test_a_slow_connection_stops_only_its_own_consumer(brokers: Brokers) -> None:
    slow, fast = await brokers.connect(), await brokers.connect()
    await fast.producer()
    value = b"x" * 50_000
    await slow.subscribe(kind=SHARED, permits=1000)
    assert slow.pump is not None
    slow.pump.pause_reading()
    await fast.publish_all([value] * 100)
    await fast.subscribe(kind=SHARED, permits=1000, consumer_id=2)
    await settle()
    stuck = next(iter(brokers[0].logs.served)).subscriptions["sub"]
    assert len(fast.has(Delivery)) > 0
    slow.pump.resume_reading()
    await settle()
    assert len(fast.has(Delivery)) + len(slow.has(Delivery)) == 100
    assert stuck.backlog == 100


async def test_a_reader_starts_at_the_entry_named_inclusive(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe()
    third = (await client.deliveries(10))[3]
    start = pb.MessageIdData(ledgerId=third.ledger, entryId=third.entry)
    await client.subscribe(subscription="r1", consumer_id=2, durable=False, start_message_id=start)
    assert values_of(await client.deliveries(7)) == numbers(3, 10)
    earliest = pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)
    await client.subscribe(subscription="r2", consumer_id=3, durable=False, start_message_id=earliest)
    assert values_of(await client.deliveries(10)) == numbers(0, 10)
    latest = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**31)
    await client.subscribe(subscription="r3", consumer_id=4, durable=False, start_message_id=latest)
    await settle()
    assert client.has(Delivery) == []
    await client.publish_all([b"10"], first=10)
    assert {d.consumer_id for d in await client.deliveries(4)} == {1, 2, 3, 4}


async def test_a_readers_subscription_goes_with_it(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe(subscription="r", durable=False)
    segment = brokers[0].logs.served[0]
    assert list(segment.subscriptions) == ["r"]
    assert error_of(await client.subscribe(subscription="r", consumer_id=2)) == pb.NotAllowedError
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
    assert list(segment.subscriptions) == []


async def test_a_reader_can_start_at_a_message_index(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    for number in range(3):
        entry = batch([b"a", b"b"], 2 * number)
        client.publish(b"", 2 * number, entry=entry, messages=2)
        await client.receipt()
    at = [pb.KeyValue(key="anabranch.start_index", value="3")]
    await client.subscribe(subscription="r", durable=False, metadata=at)
    first, second = await client.deliveries(2)
    assert (first.index, second.index) == (3, 5)


@pytest.mark.parametrize("hashes", ["", "5", "9-3", "0-65536", "a-b"])
async def test_a_reader_that_asks_for_impossible_bucket_hashes_is_refused(
    brokers: Brokers, hashes: str
) -> None:
    client = await filled(brokers)
    asked = [pb.KeyValue(key="anabranch.bucket_hashes", value=hashes)]
    refused = await client.subscribe(subscription="r", durable=False, metadata=asked)
    assert error_of(refused) == pb.NotAllowedError


async def test_a_reader_can_start_some_seconds_ago(brokers: Brokers) -> None:
    client = await filled(brokers, 3)
    await asyncio.sleep(100)
    await client.publish_all([b"new"], first=3)
    await client.subscribe(
        subscription="r", durable=False, start_message_rollback_duration_sec=50, earliest=False
    )
    assert values_of(await client.deliveries(1)) == [b"new"]


async def test_unsubscribe_needs_to_be_the_last_or_forced(brokers: Brokers) -> None:
    one, two = await filled(brokers), await brokers.connect()
    await one.subscribe(kind=SHARED)
    await two.subscribe(kind=SHARED, consumer_id=2)
    refused = await one.request(pb.CommandUnsubscribe(consumer_id=1, request_id=0))
    assert error_of(refused) == pb.MetadataError
    done = await one.request(pb.CommandUnsubscribe(consumer_id=1, request_id=0, force=True))
    assert isinstance(done, pb.CommandSuccess)
    assert (await two.expect(pb.CommandCloseConsumer)).consumer_id == 2
    await brokers.restart()
    segment = brokers[0].logs.get(TopicName.parse(TOPIC))
    assert segment is not None
    assert list(segment.subscriptions) == []


async def test_a_subscription_is_not_made_on_a_topic_that_is_not_there(brokers: Brokers) -> None:
    client = await brokers.connect()
    answer = await client.subscribe(force_topic_creation=False)
    assert error_of(answer) == pb.TopicNotFound
