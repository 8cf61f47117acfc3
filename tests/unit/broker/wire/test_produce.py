"""PRODUCER and SEND as a client sees them."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.model.names import TopicName
from anabranch.protocol import commands
from anabranch.protocol.claims import ENTRY_MESSAGES_MAX
from anabranch.protocol.commands import NO_ID, SendReceipt
from anabranch.protocol.frames import build_entry
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.lies import VISIBLE, frame_of
from simulation.world.loop import SimLoop
from simulation.world.transport import Mode
from tests.fakes.storage import SlowStorage
from tests.harness.cluster import Brokers
from tests.harness.segments import WHOLE
from tests.harness.wire import TOPIC, batch, error_of, look_up, settle, single, values_of


async def test_receipts_come_in_order_and_carry_rising_positions(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    receipts = await client.publish_all([b"%d" % n for n in range(50)])
    assert [r.sequence_id for r in receipts] == list(range(50))
    places = [(r.ledger, r.entry) for r in receipts]
    assert places == sorted(set(places))


async def test_a_generated_name_is_unique_also_after_a_restart(brokers: Brokers) -> None:
    client = await brokers.connect()
    first = await client.producer(producer_id=1)
    second = await client.producer(producer_id=2)
    assert first.producer_name != second.producer_name
    assert first.last_sequence_id == -1
    assert first.HasField("schema_version")
    await brokers.restart()
    client = await brokers.connect()
    third = await client.producer()
    assert third.producer_name not in (first.producer_name, second.producer_name)


async def test_a_name_in_use_is_refused_while_its_holder_answers(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(producer_name="p")
    assert error_of(await two.producer(producer_name="p")) == pb.ProducerBusy
    one.close()
    await settle()
    assert isinstance(await two.producer(producer_name="p"), pb.CommandProducerSuccess)


async def test_the_same_producer_comes_again_with_a_higher_epoch(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(producer_name="p")
    again = await client.producer(producer_name="p", epoch=1)
    assert again.producer_name == "p"
    await client.publish_all([b"x"], first=0)


async def test_a_repeated_request_for_a_producer_is_answered_as_the_first(brokers: Brokers) -> None:
    client = await brokers.connect()
    first = await client.producer(producer_name="p", producer_access_mode=pb.Exclusive)
    again = await client.producer(producer_name="p", producer_access_mode=pb.Exclusive)
    again.request_id = first.request_id
    assert again == first


async def test_a_duplicate_is_answered_without_an_id_and_not_stored(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(producer_name="p")
    await client.publish_all([b"a", b"b", b"c"])
    client.publish(b"b again", 1)
    client.publish(b"d", 3)
    again, new = await client.receipt(), await client.receipt()
    assert (again.sequence_id, again.ledger, again.entry) == (1, NO_ID, NO_ID)
    assert new.entry != NO_ID
    await client.subscribe()
    assert values_of(await client.deliveries(4)) == [b"a", b"b", b"c", b"d"]


async def test_a_duplicate_of_an_entry_under_way_waits_for_it(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(producer_name="p")
    frames = [encode_send(1, 7, 1, 0, single(b"x", 7)) for _ in range(2)]
    assert client.pump is not None
    client.pump.write_many([part for frame in frames for part in frame])
    first, second = await client.receipt(), await client.receipt()
    assert first.entry == 0
    assert second.entry == NO_ID


async def test_sequence_ids_are_known_after_a_restart(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(producer_name="p")
    await client.publish_all([b"a", b"b"])
    await brokers.restart()
    client = await brokers.connect()
    success = await client.producer(producer_name="p", epoch=1)
    assert success.last_sequence_id == 1
    client.publish(b"b", 1)
    assert (await client.receipt()).entry == NO_ID


@pytest.mark.brokers(storage=SlowStorage)
async def test_a_name_is_given_on_only_when_it_is_known_what_its_former_holder_stored(
    brokers: Brokers,
) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(producer_name="p")
    for number in range(10):
        one.publish(b"x", number)
    await asyncio.sleep(0.01)
    one.close()
    await asyncio.sleep(0.01)
    success = await two.producer(producer_name="p", epoch=1)
    assert success.last_sequence_id == 9


@pytest.mark.brokers(deduplication=False)
async def test_without_deduplication_every_entry_is_stored(brokers: Brokers) -> None:
    client = await brokers.connect()
    success = await client.producer(producer_name="p")
    assert success.last_sequence_id == -1
    client.publish(b"a", 5)
    client.publish(b"a", 5)
    assert {(await client.receipt()).entry, (await client.receipt()).entry} == {0, 1}


async def test_after_a_damaged_entry_the_producer_begins_again_there(brokers: Brokers) -> None:
    """If later messages were stored, the repetition of the damaged one would look like a duplicate."""

    client = await brokers.connect()
    await client.producer(producer_name="p")
    entry = bytearray(single(b"value", 1))
    entry[-1] ^= 1
    client.publish(b"first", 0)
    client.publish(b"", 1, entry=bytes(entry))
    client.publish(b"next", 2)
    assert (await client.receipt()).sequence_id == 0
    refused = await client.expect(pb.CommandSendError)
    assert (refused.error, refused.sequence_id) == (pb.ChecksumError, 1)
    await client.expect(pb.CommandCloseProducer)
    again = await client.producer(producer_id=2, producer_name="p")
    assert again.last_sequence_id == 0
    receipts = await client.publish_all([b"value", b"next"], first=1, producer_id=2)
    assert all(receipt.entry != NO_ID for receipt in receipts)


async def test_an_error_is_answered_in_the_order_of_the_sends(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    assert client.pump is not None
    client.pump.write_many(
        [
            *encode_send(1, 0, 1, 0, single(b"a", 0)),
            *encode_send(1, 1, ENTRY_MESSAGES_MAX + 1, 0, single(b"b", 1)),
            *encode_send(1, 2, 1, 0, single(b"c", 2)),
        ]
    )
    await settle()
    answers = [c.sequence_id for c in client.inbox if isinstance(c, SendReceipt | pb.CommandSendError)]
    assert answers == [0, 1, 2]


async def test_a_batch_counts_its_messages(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    client.publish(b"", 0, entry=batch([b"a", b"b", b"c"]), messages=3)
    client.publish(b"d", 3)
    await client.receipt()
    await client.receipt()
    await client.subscribe()
    first, second = await client.deliveries(2)
    assert (first.index, second.index) == (2, 3)


async def test_a_send_for_a_producer_that_never_was_ends_the_connection(brokers: Brokers) -> None:
    client = await brokers.connect()
    client.publish(b"x", 0, producer_id=9)
    await settle()
    assert client.hung_up


async def test_sends_after_close_are_swallowed(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"a"])
    assert isinstance(
        await client.request(pb.CommandCloseProducer(producer_id=1, request_id=0)), pb.CommandSuccess
    )
    client.publish(b"late", 1)
    await settle()
    assert not client.hung_up
    assert client.inbox == []


async def test_close_is_answered_after_the_receipts(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    for number in range(10):
        client.publish(b"x", number)
    client.send(pb.CommandCloseProducer(producer_id=1, request_id=77))
    await settle()
    kinds = [type(command) for command in client.inbox]
    assert kinds == [SendReceipt] * 10 + [pb.CommandSuccess]


async def test_closing_an_unknown_producer_succeeds(brokers: Brokers) -> None:
    client = await brokers.connect()
    answer = await client.request(pb.CommandCloseProducer(producer_id=5, request_id=0))
    assert isinstance(answer, pb.CommandSuccess)


async def test_an_initial_subscription_is_there_before_the_answer(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(initial_subscription_name="first")
    await client.publish_all([b"a"])
    await client.subscribe(subscription="first", earliest=False)
    assert values_of(await client.deliveries(1)) == [b"a"]


async def test_a_bad_name_is_answered_and_the_connection_stays(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert error_of(await client.producer("persistent://only/two")) == pb.InvalidTopicName
    assert error_of(await client.producer("topic://public/default/x")) == pb.NotAllowedError
    assert isinstance(await client.producer(), pb.CommandProducerSuccess)


@pytest.mark.brokers(auto_create_topics=False)
async def test_topics_are_not_made_where_that_is_switched_off(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert error_of(await client.producer()) == pb.TopicNotFound
    four = TopicName.parse("persistent://public/default/four")
    await brokers[0].classic.create(four, partitions=4)
    assert error_of(await client.producer(str(four.partition_name(4)))) == pb.TopicNotFound
    used_first = await client.producer(str(four.partition_name(3)), producer_id=2)
    assert isinstance(used_first, pb.CommandProducerSuccess), "a declared partition exists"


async def test_a_topic_needs_its_namespace(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert error_of(await client.producer("persistent://public/nowhere/x")) == pb.TopicNotFound


@pytest.mark.brokers(publish_pending_bytes_max=64 * 1024)
async def test_reading_a_connection_stops_while_too_much_waits_for_the_disk(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    big = b"x" * 40_000
    for number in range(20):
        client.publish(big, number)
    receipts = [await client.receipt() for _ in range(20)]
    assert [r.sequence_id for r in receipts] == list(range(20))
    connection = next(iter(brokers[0].connections))
    assert connection.publish_bytes == 0
    assert not connection.throttled


async def test_a_stop_answers_what_was_taken(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    for number in range(50):
        client.publish(b"x", number)
    await asyncio.sleep(0.01)
    await brokers[0].stop()
    await settle()
    taken = brokers.storages[0].get(TOPIC)
    assert taken is not None
    assert len(client.has(SendReceipt)) == taken.extent.next_ordinal
    assert client.hung_up


async def test_a_seal_does_not_wait_for_a_dead_holder_of_a_name(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(producer_name="p")
    segment = brokers[0].logs.served[0]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    assert loop.network is not None
    asking = asyncio.ensure_future(two.producer(producer_name="p"))
    await asyncio.sleep(0.01)
    loop.network.set_mode(loop.network.links()[0], Mode.HELD)
    began = loop.time()
    await segment.seal()
    assert loop.time() - began < 1.0
    loop.network.heal()
    assert error_of(await asking) in (pb.TopicTerminatedError, pb.ProducerBusy)


async def test_transactions_and_markers_are_refused_entry_by_entry(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    frame = commands.encode(
        pb.CommandSend(producer_id=1, sequence_id=0, txnid_most_bits=1, txnid_least_bits=2)
    )
    entry = single(b"x", 0)
    assert client.pump is not None
    total = int.from_bytes(frame[:4], "big") + len(entry)
    client.pump.write(total.to_bytes(4, "big") + frame[4:] + entry)
    assert (await client.expect(pb.CommandSendError)).error == pb.NotAllowedError
    await client.publish_all([b"ok"], first=1)


async def test_impossible_counts_and_endless_names_are_refused(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    client.publish(b"x", 0, messages=2_000_000_000)
    assert (await client.expect(pb.CommandSendError)).error == pb.NotAllowedError
    client.publish(b"ok", 2**64 - 1)
    assert (await client.receipt()).entry == 0
    long = "n" * 2000
    assert error_of(await client.producer(producer_id=2, producer_name=long)) == pb.NotAllowedError
    assert error_of(await client.subscribe(subscription=long)) == pb.NotAllowedError
    assert error_of(await client.subscribe(name=long)) == pb.NotAllowedError


async def test_a_lying_entry_costs_only_itself(brokers: Brokers) -> None:
    client = await brokers.connect()
    await look_up(client)
    await client.producer(WHOLE, producer_name="p")
    assert client.pump is not None
    for number, lie in enumerate(VISIBLE, 5):
        client.pump.write(frame_of(lie.tell("p", number), 1))
        refused = await client.expect(pb.CommandSendError)
        assert (refused.error, refused.sequence_id) == (pb.NotAllowedError, number), lie
    (receipt,) = await client.publish_all([b"honest"], first=100)
    assert receipt.entry == 0
    await client.subscribe(WHOLE)
    assert [delivery.index for delivery in await client.deliveries(1)] == [0]


async def test_only_the_last_chunk_of_a_message_counts_for_deduplication(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer(producer_name="p")

    def chunk(number: int) -> list[bytes]:
        metadata = pb.MessageMetadata(
            producer_name="p",
            sequence_id=5,
            publish_time=1,
            uuid="p-5",
            chunk_id=number,
            num_chunks_from_msg=2,
        )
        entry = build_entry(metadata.SerializeToString(), b"part")
        frame = commands.encode(pb.CommandSend(producer_id=1, sequence_id=5, is_chunk=True))
        total = int.from_bytes(frame[:4], "big") + len(entry)
        return [total.to_bytes(4, "big") + frame[4:], entry]

    assert client.pump is not None
    client.pump.write_many([*chunk(0), *chunk(1)])
    assert [(await client.receipt()).entry for _ in range(2)] == [0, 1]
    client.pump.write_many([*chunk(0), *chunk(1)])
    assert [(await client.receipt()).entry for _ in range(2)] == [2, NO_ID]
