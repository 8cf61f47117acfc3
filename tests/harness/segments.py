"""One scalable topic on the wire: its names, and steps that tests of segments share."""

from __future__ import annotations

from typing import Any

from anabranch.controller.topic.controller import TopicController
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, register_consumer, settle

NAME = "topic://public/default/orders"
WHOLE = "segment://public/default/orders/0000-ffff-0"
LOWER = "segment://public/default/orders/0000-7fff-0"
UPPER = "segment://public/default/orders/8000-ffff-1"


async def create_topic(brokers: Brokers, segments: int) -> WireClient:
    """The topic, and a client that has published to its last segment."""
    await brokers[0].controllers.create_topic(TopicName.parse(NAME), segments)
    client = await brokers.connect()
    await client.producer(WHOLE if segments == 1 else UPPER)
    await client.publish_all([b"0", b"1", b"2", b"3"])
    return client


async def leader_of_topic(brokers: Brokers) -> TopicController:
    controller = await brokers[0].controllers.controller(TopicName.parse(NAME))
    assert isinstance(controller, TopicController)
    return controller


async def register_stream(client: WireClient, name: str, **options: Any) -> pb.ScalableConsumerAssignment:
    answer = await register_consumer(client, name, 77, **options)
    assert isinstance(answer, pb.CommandScalableTopicSubscribeResponse)
    assert not answer.HasField("error")
    return answer.assignment


async def attach_stream(
    client: WireClient, segment: str, name: str, generation: int | None, **options: Any
) -> Any:
    if generation is not None:
        options["generation"] = generation
    return await client.subscribe(segment, "stream", name=name, **options)


async def newest_assignment(client: WireClient) -> pb.ScalableConsumerAssignment:
    """The last of the assignments that were pushed."""
    await settle()
    pushed = client.has(pb.CommandScalableTopicAssignmentUpdate)
    client.inbox = [command for command in client.inbox if command not in pushed]
    assignment: pb.ScalableConsumerAssignment = pushed[-1].assignment
    return assignment


def assigned_topics(assignment: pb.ScalableConsumerAssignment) -> list[str]:
    return sorted(segment.segment_topic for segment in assignment.segments)


async def split_segment(brokers: Brokers, segment: int = 0) -> None:
    controller = await brokers[0].controllers.controller(TopicName.parse(NAME))
    await controller.split(segment)


def segment_states(update: pb.CommandScalableTopicUpdate) -> dict[int, int]:
    return {segment.segment_id: segment.state for segment in update.dag.segments}
