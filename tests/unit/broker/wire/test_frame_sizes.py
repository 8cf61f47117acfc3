"""A broker can deliver each entry that it stores: the largest one fits the frames that consumers take."""

from __future__ import annotations

import dataclasses

import pytest

from anabranch.model.names import TopicName
from anabranch.protocol.frames import ACK_WORD_BYTES, DELIVERY_EXTRA_BYTES, build_entry, deliverable_bytes
from anabranch.protocol.hot_frames import encode_delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import error_of, settle

MESSAGE_MAX = 64 * 2**10

pytestmark = pytest.mark.brokers(max_message_bytes=MESSAGE_MAX)


def test_a_delivery_adds_no_more_than_the_room_kept_for_it() -> None:
    most = 2**64 - 1
    buffers = encode_delivery(most, most, most, 10**9 - 1, 2**32 - 1, (), most, (most, most), b"")
    assert len(b"".join(buffers)) <= DELIVERY_EXTRA_BYTES
    word = encode_delivery(1, 1, 1, -1, 0, (-1,), None, None, b"")
    assert len(word[0]) - len(encode_delivery(1, 1, 1, -1, 0, (), None, None, b"")[0]) == ACK_WORD_BYTES


def _entry(size: int, count: int) -> bytes:
    """An entry that claims many messages; the broker never opens the payload."""
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count
    ).SerializeToString()
    return build_entry(metadata, bytes(size - len(build_entry(metadata, b""))))


@pytest.mark.parametrize("count", [1, 1000, 8000])
async def test_the_largest_entry_that_is_stored_is_delivered(count: int, brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    size = deliverable_bytes(MESSAGE_MAX) - (count >> 2)
    client.publish(b"", 0, entry=_entry(size + 1, count), messages=count)
    refused = await client.expect(pb.CommandSendError)
    assert refused.error == pb.NotAllowedError
    assert "cannot be delivered" in refused.message
    client.publish(b"", 1, entry=_entry(size, count), messages=count)
    await client.receipt()
    # A consumer with the largest numbers on the wire, and all words of the ack set at their longest.
    await client.subscribe(kind=pb.CommandSubscribe.Shared, consumer_id=2**63, permits=2**31)
    (got,) = await client.deliveries(1)
    words = [-2] * -(-count // 64)
    part = pb.MessageIdData(ledgerId=got.ledger, entryId=got.entry, ack_set=words)
    if count > 1:
        client.send(pb.CommandAck(consumer_id=2**63, ack_type=pb.CommandAck.Individual, message_id=[part]))
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=2**63))
    client.flow(2**31, consumer_id=2**63)
    (again,) = await client.deliveries(1)
    assert again.data == got.data
    assert len(again.ack_set) == (len(words) if count > 1 else 0)


async def test_a_namespace_that_fits_no_frame_is_watched_in_parts_and_not_listed(brokers: Brokers) -> None:
    client = await brokers.connect()
    broker = brokers[0]
    local = [f"{number:03}{'x' * 900}" for number in range(2 * MESSAGE_MAX // 900)]
    for name in local:
        await broker.classic.create(TopicName("persistent", "public", "default", name))
    listed = await client.request(pb.CommandGetTopicsOfNamespace(request_id=0, namespace="public/default"))
    assert error_of(listed) == pb.NotAllowedError
    assert f"do not fit into {MESSAGE_MAX} bytes" in listed.message

    names = [TopicName("topic", "public", "default", name[::-1]) for name in local]
    for topic in names[:-1]:
        await broker.controllers.create_topic(topic)
    client.send(pb.CommandWatchScalableTopics(watch_id=1, namespace="public/default"))
    await settle()
    first, *rest = client.has(pb.CommandWatchScalableTopicsUpdate)
    known = set(first.snapshot.topics).union(*(update.diff.added for update in rest))
    assert known == {str(name) for name in names[:-1]}
    assert len(rest) > 1
    assert not client.hung_up


async def test_an_entry_is_delivered_after_the_limit_was_lowered(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    entry = _entry(deliverable_bytes(MESSAGE_MAX), 1)
    client.publish(b"", 0, entry=entry)
    await client.receipt()
    brokers.config = dataclasses.replace(brokers.config, max_message_bytes=MESSAGE_MAX // 8)
    await brokers.restart()
    client = await brokers.connect()
    await client.subscribe()
    (got,) = await client.deliveries(1)
    assert got.data == entry
    # The broker stores entries of the new size only.
    await client.producer()
    client.publish(b"", 1, entry=entry)
    assert (await client.expect(pb.CommandSendError)).error == pb.NotAllowedError
