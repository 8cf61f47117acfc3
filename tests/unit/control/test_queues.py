"""The leader moves and deletes the subscription of queue consumers, which are attached at Pulsar."""

from __future__ import annotations

from typing import Any

from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.control_plane import ControlProcesses
from tests.harness.segments import NAME
from tests.harness.wire import WireClient, register_consumer

LOWER = TopicName.parse("persistent://public/default/orders.segment-0000-7fff-0")
UPPER = TopicName.parse("persistent://public/default/orders.segment-8000-ffff-1")


async def ask(client: WireClient, **options: Any) -> pb.CommandScalableTopicSubscribeResponse:
    answer = await register_consumer(client, "", subscription="work", as_queue=True, **options)
    assert isinstance(answer, pb.CommandScalableTopicSubscribeResponse)
    return answer


async def made(control: ControlProcesses) -> WireClient:
    """A topic of two segments with three messages each, which its queue has acknowledged."""
    await control[0].controllers.create_topic(TopicName.parse(NAME), 2)
    client = await control.connect()
    await ask(client)
    for topic in control.pulsar.found.values():
        topic.times_ms += [1, 2, 3]
        topic.cursors["work"] = 3
    return client


def cursors(control: ControlProcesses) -> list[dict[str, int]]:
    return [control.pulsar.found[topic].cursors for topic in (LOWER, UPPER)]


async def test_a_queue_moves_to_a_time_on_all_segments(control: ControlProcesses) -> None:
    client = await made(control)
    seek = pb.CommandSeek(consumer_id=0, request_id=0, message_publish_time=2, whole_topic=True)
    assert not (await ask(client, seek=seek)).HasField("error")
    # Segments that were made after that time hold later messages only.
    assert cursors(control) == [{"work": 0}] * 2


async def test_a_queue_moves_to_an_entry_of_one_segment(control: ControlProcesses) -> None:
    client = await made(control)
    seek = pb.CommandSeek(consumer_id=0, request_id=0, segment_id=1)
    seek.message_id.ledgerId, seek.message_id.entryId = 0, 1
    assert not (await ask(client, seek=seek)).HasField("error")
    assert cursors(control) == [{"work": 3}, {"work": 1}]


async def test_a_seek_into_a_batch_is_refused_and_the_queue_stays_usable(control: ControlProcesses) -> None:
    client = await made(control)
    seek = pb.CommandSeek(consumer_id=0, request_id=0, segment_id=1)
    seek.message_id.ledgerId, seek.message_id.entryId = 0, 1
    seek.message_id.ack_set.append(6)
    assert (await ask(client, seek=seek)).error == pb.NotAllowedError
    assert cursors(control) == [{"work": 3}] * 2
    del seek.message_id.ack_set[:]
    assert not (await ask(client, seek=seek)).HasField("error")
    assert cursors(control) == [{"work": 3}, {"work": 1}]


async def test_a_queue_is_deleted_on_all_segments_and_begins_anew(control: ControlProcesses) -> None:
    client = await made(control)
    assert not (await ask(client, deletes=True)).HasField("error")
    assert cursors(control) == [{}, {}]
    await ask(client)
    assert cursors(control) == [{"work": 0}] * 2


async def test_a_queue_with_a_consumer_on_a_segment_is_not_deleted(control: ControlProcesses) -> None:
    client = await made(control)
    control.pulsar.found[UPPER].consumers["work"] = 1
    answer = await ask(client, deletes=True)
    assert (answer.error, answer.message) == (pb.MetadataError, "subscription work has other consumers")
    assert cursors(control) == [{"work": 3}] * 2
