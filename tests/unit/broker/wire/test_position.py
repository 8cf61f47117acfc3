"""SEEK, GET_LAST_MESSAGE_ID and CONSUMER_STATS."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.broker.serving.log.served_log import RETURN_S
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, batch, error_of, settle, values_of

EARLIEST = pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)
LATEST = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)


async def filled(brokers: Brokers, count: int = 10) -> WireClient:
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % n for n in range(count)])
    return client


async def test_seek_closes_every_consumer_then_answers_and_starts_at_the_entry(brokers: Brokers) -> None:
    one, two = await filled(brokers), await brokers.connect()
    await one.subscribe(kind=pb.CommandSubscribe.Shared)
    await two.subscribe(kind=pb.CommandSubscribe.Shared, consumer_id=2)
    await settle()
    everything = [*one.has(Delivery), *two.has(Delivery)]
    third = sorted(everything, key=lambda d: d.entry)[3]
    one.acknowledge(*everything)
    one.inbox.clear()
    aim = pb.MessageIdData(ledgerId=third.ledger, entryId=third.entry)
    one.send(pb.CommandSeek(consumer_id=1, request_id=50, message_id=aim))
    await settle()
    assert [type(c) for c in one.inbox] == [pb.CommandCloseConsumer, pb.CommandSuccess]
    assert (await two.expect(pb.CommandCloseConsumer)).request_id == NO_ID
    one.inbox.clear()
    await one.subscribe(kind=pb.CommandSubscribe.Shared)
    assert values_of(await one.deliveries(7)) == [b"%d" % n for n in range(3, 10)]


async def test_seek_to_the_ends_and_to_a_time(brokers: Brokers) -> None:
    client = await filled(brokers, 3)
    await asyncio.sleep(100)
    await client.publish_all([b"3"], first=3)
    await client.subscribe()
    await client.deliveries(4)

    async def seek(**aim: object) -> None:
        answer = await client.request(pb.CommandSeek(consumer_id=1, request_id=0, **aim))  # type: ignore[arg-type]
        assert isinstance(answer, pb.CommandSuccess)
        client.inbox.clear()
        await client.subscribe()
        await settle()

    await seek(message_id=pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1))
    assert client.has(Delivery) == []
    await seek(message_id=pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID))
    assert len(client.has(Delivery)) == 4
    await seek(message_publish_time=1_700_000_000_000 + 50_000)
    assert values_of(client.has(Delivery)) == [b"3"]
    await seek(message_publish_time=0)
    assert len(client.has(Delivery)) == 4


async def test_seek_into_a_batch_leaves_out_what_lies_before(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    client.publish(b"", 0, entry=batch([b"a", b"b", b"c", b"d"]), messages=4)
    await client.receipt()
    await client.subscribe()
    entry = (await client.deliveries(1))[0]
    aim = pb.MessageIdData(ledgerId=entry.ledger, entryId=entry.entry, ack_set=[0b1100])
    await client.request(pb.CommandSeek(consumer_id=1, request_id=0, message_id=aim))
    await client.subscribe()
    assert (await client.deliveries(1))[0].ack_set == (0b1100,)


async def test_seek_of_an_unknown_consumer_is_refused(brokers: Brokers) -> None:
    client = await brokers.connect()
    answer = await client.request(pb.CommandSeek(consumer_id=4, request_id=0, message_publish_time=1))
    assert error_of(answer) == pb.MetadataError


async def test_the_position_after_a_seek_survives_a_restart(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe()
    got = await client.deliveries(10)
    client.acknowledge(got[9], cumulative=True)
    aim = pb.MessageIdData(ledgerId=got[5].ledger, entryId=got[5].entry)
    await client.request(pb.CommandSeek(consumer_id=1, request_id=0, message_id=aim))
    await brokers.restart()
    client = await brokers.connect()
    await client.subscribe()
    assert values_of(await client.deliveries(5)) == [b"%d" % n for n in range(5, 10)]


async def test_the_last_id_says_where_the_log_ends_and_more_to_our_clients(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe()
    empty = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert (empty.last_message_id.ledgerId, empty.last_message_id.batch_index) == (NO_ID, -1)
    assert (empty.first_index, empty.next_index, empty.sealed) == (0, 0, False)
    client.publish(b"", 0, entry=batch([b"a", b"b", b"c"]), messages=3)
    receipt = await client.receipt()
    last = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    place = last.last_message_id
    assert (place.ledgerId, place.entryId, place.batch_index, place.partition) == (
        receipt.ledger,
        receipt.entry,
        2,
        -1,
    )
    assert last.next_index == 3
    assert last.HasField("consumer_mark_delete_position")
    other = await brokers.connect(version="Pulsar-Java-v4.0")
    await other.subscribe(subscription="other")
    plain = await other.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert not plain.HasField("next_index")


async def test_stats_of_a_consumer(brokers: Brokers) -> None:
    client = await filled(brokers)
    await client.subscribe(permits=15, name="me")
    await client.deliveries(10)
    stats = await client.request(pb.CommandConsumerStats(consumer_id=1, request_id=0))
    assert (stats.consumerName, stats.availablePermits, stats.msgBacklog) == ("me", 5, 10)
    assert (stats.unackedMessages, stats.type) == (10, "Exclusive")
    unknown = await client.request(pb.CommandConsumerStats(consumer_id=8, request_id=0))
    assert unknown.error_code == pb.ConsumerNotFound


async def read(client: WireClient, start: pb.MessageIdData = EARLIEST) -> None:
    """Attach a reader, and receive all that it gets."""
    client.inbox.clear()
    await client.subscribe(subscription="reader-1", durable=False, start_message_id=start)
    await settle()


async def seek(client: WireClient, **aim: Any) -> None:
    answer = await client.request(pb.CommandSeek(consumer_id=1, request_id=0, **aim))
    assert isinstance(answer, pb.CommandSuccess)


async def test_the_last_id_tells_a_reader_where_it_stands(brokers: Brokers) -> None:
    client = await filled(brokers, 3)
    await read(client)
    first = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    assert first.consumer_mark_delete_position.entryId == NO_ID
    await seek(client, message_id=LATEST)
    await read(client)
    last = await client.request(pb.CommandGetLastMessageId(consumer_id=1, request_id=0))
    marked, end = last.consumer_mark_delete_position, last.last_message_id
    assert (marked.ledgerId, marked.entryId) == (end.ledgerId, end.entryId)


async def test_a_reader_comes_back_where_its_seek_led(brokers: Brokers) -> None:
    client = await filled(brokers, 3)
    await asyncio.sleep(100)
    await client.publish_all([b"3"], first=3)
    await read(client)
    await seek(client, message_publish_time=1_700_000_000_000 + 50_000)
    await read(client)
    assert values_of(client.has(Delivery)) == [b"3"]
    # The wait for the first return must not end the second one.
    await asyncio.sleep(RETURN_S - 1)
    await seek(client, message_id=LATEST)
    await asyncio.sleep(RETURN_S - 1)
    await read(client)
    assert client.has(Delivery) == []


async def test_the_position_of_a_reader_that_does_not_come_back_is_forgotten(brokers: Brokers) -> None:
    client = await filled(brokers, 3)
    await read(client)
    await seek(client, message_id=LATEST)
    await asyncio.sleep(RETURN_S + 1)
    await read(client)
    assert len(client.has(Delivery)) == 3


async def test_a_reader_that_came_back_and_left_is_forgotten_at_once(brokers: Brokers) -> None:
    client = await filled(brokers, 3)
    await read(client)
    await seek(client, message_id=LATEST)
    await read(client)
    await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
    await read(client)
    assert len(client.has(Delivery)) == 3
