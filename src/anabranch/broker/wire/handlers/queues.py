"""Subscriptions of queue consumers that do not register, because brokers of Apache Pulsar hold the segments.

Such a client names the topic and the subscription each time. The leader makes, moves or deletes the
subscription on all segments, as it does for consumers that are attached to these brokers.
"""

from __future__ import annotations

from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.led import seek_as_asked
from anabranch.controller.decide.operation import segment_name
from anabranch.controller.ports.leader import TopicLeader
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import InitialPosition
from anabranch.model.names import Place, TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb


async def serve_queue(
    connection: ServerConnection,
    command: pb.CommandScalableTopicSubscribe,
    controller: TopicLeader,
    start: InitialPosition,
) -> None:
    """Make, move or delete the subscription that the command names, and answer."""
    subscription = command.subscription
    if command.HasField("seek"):
        await seek_as_asked(connection, controller, subscription, command.seek)
    elif command.deletes:
        await _check_unused(connection, TopicName.parse(command.topic).topic, subscription)
        await controller.delete_subscription(subscription)
    else:
        opened_in = command.opened_in if command.HasField("opened_in") else None
        await controller.ensure_subscription(subscription, "QUEUE", start, opened_in)
    connection.send(pb.CommandScalableTopicSubscribeResponse(request_id=command.request_id))


async def _check_unused(connection: ServerConnection, name: TopicName, subscription: str) -> None:
    """Raise MetadataError if a consumer is attached to a segment; the leader knows members only."""
    record = await connection.services.records.find(name)
    if record is not None:
        segments = layout_of(record).segments.values()
        places = [Place(segment_name(name, one), one.store) for one in segments]
        await connection.services.engine.check_unused(places, subscription)
