"""Registration of stream consumers on the wire."""

from __future__ import annotations

import asyncio

from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.segments import (
    NAME,
    WHOLE,
)
from tests.harness.wire import (
    error_of,
    look_up,
    register_consumer,
    settle,
)


async def test_stream_consumers_are_assigned_segments_and_told_when_that_changes(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await look_up(one)
    first = await register_consumer(one, "a")
    assert [s.segment_topic for s in first.assignment.segments] == [WHOLE]
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


async def test_a_leave_that_overtakes_its_registration_leaves_no_member(brokers: Brokers) -> None:
    client, other = await brokers.connect(), await brokers.connect()
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
    controller = await brokers[0].controllers.lead(TopicName.parse(NAME))
    assert list(controller.records["stream"].consumers) == ["b"]
    answers = {c.request_id for c in client.has(pb.CommandSuccess)}
    assert 2 not in answers, "no end of a registration that never began is announced"
    assert not client.hung_up


async def test_a_registration_outlives_a_short_loss_of_its_connection(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await look_up(one)
    await register_consumer(one, "a")
    await register_consumer(two, "b")
    await settle()
    two.inbox.clear()
    one.close()
    await asyncio.sleep(30)
    assert two.has(pb.CommandScalableTopicAssignmentUpdate) == []
    one = await brokers.connect()
    assert (await register_consumer(one, "a")).assignment.segments
    one.close()
    await asyncio.sleep(61)
    assert two.has(pb.CommandScalableTopicAssignmentUpdate)


async def test_registering_with_a_topic_that_is_not_there_is_refused(brokers: Brokers) -> None:
    client = await brokers.connect()
    assert (await register_consumer(client, "a")).error == pb.TopicNotFound
    assert (await register_consumer(client, "a" * 1025)).error == pb.NotAllowedError
    answer = await client.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    assert error_of(answer) == pb.ConsumerNotFound
