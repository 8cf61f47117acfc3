"""Commands about a subscription as a whole, which the leader of the topic carries out.

They name a registered consumer, or an attached one together with a field that only Anabranch clients send.
"""

from __future__ import annotations

from anabranch.broker.serving.subscription.acknowledging import position_from
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import attached_consumer
from anabranch.controller.ports.leader import TopicLeader
from anabranch.controller.ports.segments import Aim
from anabranch.errors import NotAllowedError
from anabranch.protocol.pb import pulsar_pb2 as pb


async def seek_by_leader(connection: ServerConnection, command: pb.CommandSeek) -> bool:
    """Move a subscription on all segments, or on the one that the command names; False for other seeks."""
    registered = connection.registrations.get(command.consumer_id)
    by_segment = command.HasField("segment_id")
    if registered is None and not command.whole_topic and not by_segment:
        return False
    controller, subscription = await _led(connection, command.consumer_id)
    await seek_as_asked(connection, controller, subscription, command)
    connection.send(pb.CommandSuccess(request_id=command.request_id))
    return True


async def seek_as_asked(
    connection: ServerConnection, controller: TopicLeader, subscription: str, command: pb.CommandSeek
) -> None:
    """Have the leader move a subscription on all segments, or on the one that the command names."""
    # Before the leader records the move, because it repeats a recorded one until it succeeds.
    connection.services.engine.check_seek(command.message_id.ack_set)
    by_segment, timed = command.HasField("segment_id"), command.HasField("message_publish_time")
    if by_segment and timed:
        await controller.seek_segment(subscription, command.segment_id, command.message_publish_time)
    elif by_segment:
        place = position_from(command.message_id)
        aim = Aim(place.ledger, place.entry, tuple(command.message_id.ack_set))
        await controller.seek_segment(subscription, command.segment_id, aim)
    elif timed:
        await controller.seek(subscription, command.message_publish_time)
    else:
        raise NotAllowedError("a seek to a message must name its segment")


async def unsubscribe_member(connection: ServerConnection, command: pb.CommandUnsubscribe) -> bool:
    """Delete the subscription of a registered consumer, which leaves it; False for attached consumers.

    Raises ConsumerBusyError if it has other members, unless forced.
    """
    registered = connection.registrations.pop(command.consumer_id, None)
    if registered is None:
        return False
    await registered.leave()
    await registered.controller.delete_subscription(registered.registration.subscription, force=command.force)
    connection.send(pb.CommandSuccess(request_id=command.request_id))
    return True


async def _led(connection: ServerConnection, consumer_id: int) -> tuple[TopicLeader, str]:
    """The leader of a consumer's topic, and the name of its subscription."""
    registered = connection.registrations.get(consumer_id)
    if registered is not None:
        return registered.controller, registered.registration.subscription
    segment, subscription, _ = attached_consumer(connection, consumer_id)
    controller = await connection.services.controllers.controller(segment.name.topic)
    return controller, subscription.name
