"""Repeated sends across seals by clients without inheritance: a message in doubt is stored."""

from __future__ import annotations

import pytest

from anabranch.model.hashing import key_hash
from anabranch.model.names import TopicName
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.storage import SlowStorage
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, look_up, single

LOW = next(f"k{n}" for n in range(100) if key_hash(f"k{n}") >> 16 < 0x8000)
HIGH = next(f"k{n}" for n in range(100) if key_hash(f"k{n}") >> 16 >= 0x8000)
NAME = "topic://public/default/orders"
FIRST = "segment://public/default/orders/0000-ffff-0"
ONE = "segment://public/default/orders/0000-7fff-1"
TWO = "segment://public/default/orders/8000-ffff-2"
MERGED = "segment://public/default/orders/0000-ffff-3"
FOREIGN = "Pulsar-Java-v4.0.0"


async def split(brokers: Brokers) -> None:
    controller = await brokers[0].controllers.controller(TopicName.parse(NAME))
    await controller.split(0)


async def merge(brokers: Brokers) -> None:
    controller = await brokers[0].controllers.controller(TopicName.parse(NAME))
    await controller.merge([1, 2])


async def begin(brokers: Brokers, ids: dict[str, range]) -> WireClient:
    """A foreign client whose producer has written these ids to two segments; they are not merged yet."""
    client = await brokers.connect(version=FOREIGN)
    await look_up(client)
    await split(brokers)
    for number, (key, numbers) in enumerate(ids.items(), 1):
        await client.producer(ONE if key == LOW else TWO, number, producer_name="p")
        for sequence in numbers:
            assert (await send(client, sequence, key, producer_id=number)) != NO_ID
    return client


async def send(client: WireClient, sequence: int, key: str | None, producer_id: int = 9) -> int:
    """Publish one message; return its entry, or NO_ID if the broker took it for a duplicate."""
    client.publish(b"x", sequence, key=key, producer_id=producer_id)
    return (await client.receipt()).entry


async def send_batch(client: WireClient, first: int, last: int, keys: list[str | None]) -> int:
    """Publish a batch as other clients do: with its first and its highest sequence id."""
    batch = MessageBatch()
    for sequence, key in zip(range(first, last + 1), keys, strict=True):
        batch.add(b"x", key, sequence)
    entry = batch.build("p", 1)
    assert client.pump is not None
    client.pump.write_many(encode_send(9, first, last - first + 1, last, entry))
    return (await client.receipt()).entry


async def test_a_child_recognises_what_its_parent_stored(brokers: Brokers) -> None:
    client = await brokers.connect(version=FOREIGN)
    await look_up(client)
    await client.producer(FIRST, producer_name="p")
    await client.publish_all([b"x"] * 7, key=LOW)
    await split(brokers)
    answer = await client.producer(ONE, 9, producer_name="p")
    assert answer.last_sequence_id == 6
    assert not answer.HasField("own_sequence_id")
    assert [await send(client, sequence, LOW) for sequence in range(7)] == [NO_ID] * 7
    assert await send(client, 7, LOW) == 0
    assert await send(client, 7, LOW) == NO_ID


async def test_a_merged_segment_judges_a_key_by_the_parent_it_was_in(brokers: Brokers) -> None:
    client = await begin(brokers, {LOW: range(11), HIGH: range(3)})
    await merge(brokers)
    assert (await client.producer(MERGED, 9, producer_name="p")).last_sequence_id == 10
    assert await send(client, 2, HIGH) == NO_ID
    assert await send(client, 3, HIGH) == 0
    assert await send(client, 10, LOW) == NO_ID
    assert await send(client, 11, LOW) == 1


async def test_a_producer_of_one_parent_loses_nothing_in_the_range_of_the_other(brokers: Brokers) -> None:
    client = await begin(brokers, {LOW: range(11)})
    await merge(brokers)
    await client.producer(MERGED, 9, producer_name="p")
    assert await send(client, 0, HIGH) == 0
    assert await send(client, 1, LOW) == NO_ID
    assert await send(client, 2, None) == 1


async def test_a_batch_of_a_foreign_client_is_stored_unless_all_of_it_is_known(brokers: Brokers) -> None:
    client = await begin(brokers, {LOW: range(11), HIGH: range(3)})
    await merge(brokers)
    await client.producer(MERGED, 9, producer_name="p")
    assert await send_batch(client, 0, 2, [LOW, HIGH, HIGH]) == NO_ID
    assert await send_batch(client, 0, 3, [LOW, HIGH, HIGH, HIGH]) == 0
    assert await send_batch(client, 9, 10, [LOW, LOW]) == 1


async def test_a_batch_whose_end_is_new_is_stored_though_its_beginning_is_known(brokers: Brokers) -> None:
    client = await brokers.connect(version=FOREIGN)
    await look_up(client)
    await client.producer(FIRST, producer_name="p")
    await client.publish_all([b"x"] * 7, key=LOW)
    await split(brokers)
    await client.producer(ONE, 9, producer_name="p")
    assert await send_batch(client, 5, 8, [LOW] * 4) == 0


async def test_a_batch_that_claims_to_be_one_message_is_refused(brokers: Brokers) -> None:
    client = await begin(brokers, {LOW: range(11), HIGH: range(3)})
    await merge(brokers)
    await client.producer(MERGED, 9, producer_name="p")
    batch = MessageBatch()
    batch.add(b"x", LOW, 4)
    batch.add(b"x", HIGH, 5)
    client.publish(b"", 5, entry=batch.build("p", 1), producer_id=9)
    assert (await client.expect(pb.CommandSendError)).error == pb.NotAllowedError


async def test_sequence_ids_inherited_twice_and_through_a_restart_count(brokers: Brokers) -> None:
    client = await begin(brokers, {LOW: range(11), HIGH: range(3)})
    await merge(brokers)
    await brokers.restart()
    controller = await brokers[0].controllers.controller(TopicName.parse(NAME))
    await controller.split(3)
    client = await brokers.connect(version=FOREIGN)
    await client.producer("segment://public/default/orders/8000-ffff-5", 9, producer_name="p")
    assert await send(client, 2, HIGH) == NO_ID
    assert await send(client, 3, HIGH) == 0
    await client.producer("segment://public/default/orders/0000-7fff-4", 8, producer_name="p")
    assert await send(client, 10, LOW, producer_id=8) == NO_ID


async def test_a_slot_tells_where_a_message_without_a_key_belongs(brokers: Brokers) -> None:
    client = await begin(brokers, {LOW: range(11), HIGH: range(3)})
    await merge(brokers)
    await client.producer(MERGED, 9, producer_name="p")
    client.publish(b"", 3, entry=single(b"x", 3, slot=0x9000), producer_id=9)
    assert (await client.receipt()).entry == 0
    client.publish(b"", 4, entry=single(b"x", 4, slot=0x1000), producer_id=9)
    assert (await client.receipt()).entry == NO_ID


async def test_our_client_is_told_what_the_segment_itself_has_stored(brokers: Brokers) -> None:
    await begin(brokers, {LOW: range(11), HIGH: range(3)})
    await merge(brokers)
    ours = await brokers.connect()
    answer = await ours.producer(MERGED, 9, producer_name="p")
    assert (answer.last_sequence_id, answer.own_sequence_id) == (10, -1)
    assert answer.HasField("own_sequence_id")
    assert await send(ours, 3, HIGH) == 0
    asked = pb.CommandProducer(topic=MERGED, producer_id=8, request_id=0, producer_name="p")
    asked.metadata.add(key="anabranch.settle", value="true")
    answer = await ours.request(asked)
    assert (answer.last_sequence_id, answer.own_sequence_id) == (10, 3)


@pytest.mark.brokers(storage=SlowStorage)
async def test_a_repetition_is_answered_in_its_turn(brokers: Brokers) -> None:
    client = await begin(brokers, {LOW: range(11), HIGH: range(3)})
    await merge(brokers)
    await client.producer(MERGED, 9, producer_name="p")
    for sequence, key in [(3, HIGH), (4, LOW), (5, HIGH), (6, LOW)]:
        client.publish(b"x", sequence, key=key, producer_id=9)
    receipts = [await client.receipt() for _ in range(4)]
    assert [receipt.sequence_id for receipt in receipts] == [3, 4, 5, 6]
    assert [receipt.entry for receipt in receipts] == [0, NO_ID, 1, NO_ID]


@pytest.mark.brokers(deduplication=False)
async def test_without_deduplication_nothing_is_inherited(brokers: Brokers) -> None:
    client = await brokers.connect(version=FOREIGN)
    await look_up(client)
    await client.producer(FIRST, producer_name="p")
    await client.publish_all([b"x"] * 7, key=LOW)
    await split(brokers)
    assert (await client.producer(ONE, 9, producer_name="p")).last_sequence_id == -1
    assert await send(client, 3, LOW) == 0
