"""SEEK, GET_LAST_MESSAGE_ID and CONSUMER_STATS: the position of a consumer, and moving it."""

from __future__ import annotations

from anabranch.broker.serving.acknowledging import position_from
from anabranch.broker.serving.shared_reading import PendingReading
from anabranch.broker.serving.subscription import kind_name
from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import attached_consumer
from anabranch.controller.ports.segments import Aim
from anabranch.errors import ConsumerNotFoundError, RemoteProtocolError, UnknownServerError
from anabranch.ledger.storage import SegmentLog
from anabranch.model.acks import bits_from_words
from anabranch.model.ids import Position
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb


async def seek(connection: ServerConnection, command: pb.CommandSeek) -> None:
    """Close every consumer of the subscription, move the cursor, then answer."""
    segment, subscription, _ = attached_consumer(connection, command.consumer_id)
    if subscription.busy.locked():
        raise UnknownServerError(f"{subscription.name} is being moved already")
    timed, place = command.HasField("message_publish_time"), position_from(command.message_id)
    ack_set = command.message_id.ack_set
    if segment.name.segment is not None and subscription.durable:
        # The leader moves the cursor, because children of a drained segment wait for the segment again.
        controller = await connection.services.controllers.controller(segment.name.topic)
        aim = command.message_publish_time if timed else Aim(place.ledger, place.entry, tuple(ack_set))
        await controller.seek_segment(subscription.name, segment.name.segment.id, aim)
    elif timed:
        await subscription.seek(segment.log.extent.ordinal_at_time(command.message_publish_time))
    else:
        remaining = bits_from_words(ack_set) if ack_set else None
        await subscription.seek(segment.log.extent.ordinal_of(place), remaining)
    segment.forget_unused(subscription)
    connection.send(pb.CommandSuccess(request_id=command.request_id))


async def last_message_id(connection: ServerConnection, command: pb.CommandGetLastMessageId) -> None:
    segment, subscription, _ = attached_consumer(connection, command.consumer_id)
    log, partition = segment.log, segment.partition
    # Take all values at one moment; reading the last entry may take a while.
    extent = log.extent
    end, next_index, sealed = extent.next_ordinal, extent.next_index, log.sealed
    last = Position(-1, -1) if end == extent.first_ordinal else extent.position_of(end - 1)
    response = pb.CommandGetLastMessageIdResponse(
        request_id=command.request_id,
        last_message_id=_wire_id(last, partition, await _last_batch_index(log, end)),
    )
    if subscription.durable:
        response.consumer_mark_delete_position.CopyFrom(_wire_id(subscription.mark_delete, partition, -1))
    if connection.peer_is_ours:
        response.first_index, response.next_index, response.sealed = extent.first_index, next_index, sealed
    connection.send(response)


async def _last_batch_index(log: SegmentLog, end: int) -> int:
    """Index of the last message inside its entry, -1 when the entry is not a batch."""
    if end == log.extent.first_ordinal:
        return -1
    entries = log.read_cached(end - 1, 1, 1) or await log.read(end - 1, 1, 1)
    try:
        outer = read_outer(entries[0].data)
    except RemoteProtocolError:
        return -1
    return outer.num_messages - 1 if outer.is_batch else -1


def _wire_id(position: Position, partition: int, batch_index: int) -> pb.MessageIdData:
    return pb.MessageIdData(
        ledgerId=position.ledger & NO_ID,
        entryId=position.entry & NO_ID,
        partition=partition,
        batch_index=batch_index,
    )


def stats(connection: ServerConnection, command: pb.CommandConsumerStats) -> None:
    attached = connection.consumers.get(command.consumer_id)
    if attached is None:
        raise ConsumerNotFoundError(f"consumer {command.consumer_id} is not known")
    segment, subscription, consumer = attached
    rates = segment.rates()
    unacked = consumer.unacked
    if not isinstance(subscription.reading, PendingReading):
        unacked = max(0, subscription.reading.next - subscription.cursor.acks.mark)
    response = pb.CommandConsumerStatsResponse(
        request_id=command.request_id,
        msgRateOut=rates[2],
        msgThroughputOut=rates[3],
        msgRateRedeliver=0.0,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=unacked,
        blockedConsumerOnUnackedMsgs=consumer.blocked,
        address=consumer.link.address,
        connectedSince=str(consumer.options.connected_at_ms),
        type=kind_name(subscription.kind),
        msgRateExpired=0.0,
        msgBacklog=subscription.backlog,
        messageAckRate=0.0,
    )
    connection.send(response)


HANDLERS = {
    pb.CommandSeek: CommandHandler(seek),
    pb.CommandGetLastMessageId: CommandHandler(last_message_id),
    pb.CommandConsumerStats: CommandHandler(stats, refuse_with(pb.CommandConsumerStatsResponse)),
}
