"""The commands of an attached consumer: permits, acknowledgements, its position, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

from anabranch.broker.serving.delivery.retries import retry_of
from anabranch.broker.serving.log import client_rates
from anabranch.broker.serving.log.finding import (
    FoundMessage,
    after_id,
    at_index,
    at_time,
    first_unacknowledged,
)
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.reading.strategies import kind_name
from anabranch.broker.serving.subscription.acknowledging import mark_delete, position_from
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import attached_consumer, close_once_begun
from anabranch.broker.wire.handlers.led import seek_by_leader, unsubscribe_member
from anabranch.broker.wire.turns import Slices
from anabranch.controller.ports.segments import Aim
from anabranch.errors import (
    ConsumerNotFoundError,
    DamagedEntriesError,
    MetadataError,
    NotAllowedError,
    RemoteProtocolError,
    UnknownServerError,
)
from anabranch.ledger.storage import LogExtent, SegmentLog
from anabranch.model.acks import bits_from_words
from anabranch.model.ids import Position
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

_send_ack_error = refuse_with(pb.CommandAckResponse, "consumer_id", "request_id")


def flow(connection: ServerConnection, command: pb.CommandFlow) -> None:
    attached = connection.consumers.get(command.consumer_id)
    if attached is not None:
        attached.subscription.flow(attached.consumer, command.messagePermits)


def acknowledge(connection: ServerConnection, command: pb.CommandAck) -> Slices | None:
    """Take an ACK. The ACK of a consumer that is gone changes nothing and is answered with an error."""
    attached = connection.consumers.get(command.consumer_id)
    if attached is None:
        raise ConsumerNotFoundError(f"consumer {command.consumer_id} is not attached")
    _, subscription, consumer = attached
    if command.txnid_most_bits or command.txnid_least_bits:
        raise NotAllowedError("transactions are not supported by this broker")
    slices = subscription.acknowledge(consumer, command)
    if slices is not None:
        return _acknowledge_in_slices(connection, command, slices)
    _answer_ack(connection, command, subscription)
    return None


def _acknowledge_in_slices(
    connection: ServerConnection, command: pb.CommandAck, slices: Iterator[None]
) -> Slices:
    attached = connection.consumers[command.consumer_id]
    for _ in slices:
        yield
        if connection.consumers.get(command.consumer_id) is not attached:
            raise ConsumerNotFoundError(f"consumer {command.consumer_id} was detached during its ACK")
    _answer_ack(connection, command, attached.subscription)


def _answer_ack(connection: ServerConnection, command: pb.CommandAck, subscription: Subscription) -> None:
    if command.HasField("request_id"):
        response = pb.CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
        subscription.answers.add(connection, response)


def redeliver(connection: ServerConnection, command: pb.CommandRedeliverUnacknowledgedMessages) -> Slices:
    attached = connection.consumers.get(command.consumer_id)
    if attached is not None:
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        retry = retry_of(command)
        for _ in attached.subscription.redeliver(attached.consumer, command.message_ids, epoch, retry):
            yield
            if connection.consumers.get(command.consumer_id) is not attached:
                return


async def unsubscribe(connection: ServerConnection, command: pb.CommandUnsubscribe) -> None:
    """Delete a subscription. One of a segment belongs to the topic, and is deleted on all segments."""
    if await unsubscribe_member(connection, command):
        return
    segment, subscription, consumer = attached_consumer(connection, command.consumer_id)
    if len(subscription.consumers) > 1 and not command.force:
        raise MetadataError(f"subscription {subscription.name} has other consumers")
    if segment.name.is_segment and subscription.durable:
        controller = await connection.services.controllers.controller(segment.name.topic)
        consumer.leaving = True
        try:
            await controller.delete_subscription(subscription.name, force=command.force)
        finally:
            consumer.leaving = False
    else:
        connection.consumers.pop(command.consumer_id, None)
        segment.detach(subscription, consumer)
        await segment.unsubscribe(subscription.name)
    connection.send(pb.CommandSuccess(request_id=command.request_id))


def close_consumer(
    connection: ServerConnection, command: pb.CommandCloseConsumer
) -> Coroutine[Any, Any, None] | None:
    close = partial(_close_consumer, connection, command)
    return close_once_begun(connection, "consumer", command.consumer_id, close)


def _close_consumer(connection: ServerConnection, command: pb.CommandCloseConsumer) -> None:
    attached = connection.consumers.pop(command.consumer_id, None)
    if attached is not None:
        attached.segment.detach(attached.subscription, attached.consumer)
    connection.send(pb.CommandSuccess(request_id=command.request_id))


def refuse_ack(connection: ServerConnection, command: pb.CommandAck, error: Exception) -> None:
    if command.HasField("request_id"):
        _send_ack_error(connection, command, error)


async def seek(connection: ServerConnection, command: pb.CommandSeek) -> None:
    """Close every consumer of the subscription, move the cursor, then answer."""
    if await seek_by_leader(connection, command):
        return
    segment, subscription, _ = attached_consumer(connection, command.consumer_id)
    if subscription.busy.locked():
        raise UnknownServerError(f"{subscription.name} is already being moved")
    timed, place = command.HasField("message_publish_time"), position_from(command.message_id)
    ack_set = command.message_id.ack_set
    if segment.name.segment is not None and subscription.durable:
        # The leader moves the cursor, because children of a drained segment wait for the segment again.
        controller = await connection.services.controllers.controller(segment.name.topic)
        aim = command.message_publish_time if timed else Aim(place.ledger, place.entry, tuple(ack_set))
        await controller.seek_segment(subscription.name, segment.name.segment.id, aim)
    elif timed:
        await subscription.seek(await subscription.backing.ordinal_at_time(command.message_publish_time))
    else:
        remaining = bits_from_words(ack_set) if ack_set else None
        await subscription.seek(subscription.backing.places.ordinal_of(place), remaining)
    segment.await_return(subscription)
    connection.send(pb.CommandSuccess(request_id=command.request_id))


async def last_message_id(connection: ServerConnection, command: pb.CommandGetLastMessageId) -> None:
    segment, subscription, _ = attached_consumer(connection, command.consumer_id)
    log, partition = segment.log, segment.partition
    found = await _find(segment, command) if connection.peer_is_ours else None
    # Take all values at one moment; reading the last entry may take a while.
    extent = log.extent
    end, first_index, next_index = extent.next_ordinal, extent.first_index, extent.next_index
    sealed = log.sealed
    last = Position(-1, -1) if end == extent.first_ordinal else extent.position_of(end - 1)
    kept = await segment.compacted.last() if subscription.backing.is_compacted else None
    last, batch_index = kept or (last, await _last_batch_index(log, end))
    response = pb.CommandGetLastMessageIdResponse(
        request_id=command.request_id, last_message_id=_wire_id(last, partition, batch_index)
    )
    marked = mark_delete(log, subscription.cursor)
    response.consumer_mark_delete_position.CopyFrom(_wire_id(marked, partition, -1))
    if connection.peer_is_ours:
        response.first_index, response.next_index, response.sealed = first_index, next_index, sealed
        response.log_id = connection.services.logs.stores.identity(segment.store, log)
        response.all_sent = log.sealed and subscription.reading.at_end
        _add_times(response, command, extent)
    if found is not None:
        response.found_index = found.index
        response.found_id.CopyFrom(_wire_id(found.position, partition, found.batch_index))
        response.found_id.batch_size = found.batch_size
    connection.send(response)


async def _find(segment: ServedLog, command: pb.CommandGetLastMessageId) -> FoundMessage | None:
    """The message that the client wants to find as well, if any."""
    match command.WhichOneof("find"):
        case "find_time_ms":
            return await at_time(segment.log, command.find_time_ms)
        case "find_index":
            return at_index(segment.log, command.find_index)
        case "find_id":
            return after_id(segment.log, position_from(command.find_id), command.find_id.batch_index)
        case "find_subscription":
            return first_unacknowledged(segment, command.find_subscription)
        case _:
            return None


def _add_times(
    response: pb.CommandGetLastMessageIdResponse, command: pb.CommandGetLastMessageId, extent: LogExtent
) -> None:
    """Answer when a message was stored, and which message was stored first after a time, if asked."""
    if command.HasField("time_of_index"):
        time_ms = extent.time_of(extent.ordinal_of_index(command.time_of_index))
        if time_ms is not None:
            response.time_ms = time_ms
    if command.HasField("index_after_ms"):
        response.index_after = extent.index_of(extent.ordinal_at_time(command.index_after_ms + 1))


async def _last_batch_index(log: SegmentLog, end: int) -> int:
    """Return the index of the last message in its entry, or -1 if the entry is damaged or not a batch."""
    if end == log.extent.first_ordinal:
        return -1
    try:
        entries = log.read_cached(end - 1, 1, 1) or await log.read(end - 1, 1, 1)
        outer = read_outer(entries[0].data)
    except (RemoteProtocolError, DamagedEntriesError):
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
    now_s, window_s = asyncio.get_running_loop().time(), segment.rate_window_s
    rates = client_rates.consumer_rates(consumer, now_s, window_s)
    unacked = consumer.unacked
    if subscription.reading.outstanding is None:
        unacked = max(0, subscription.reading.path.next - subscription.cursor.acks.mark)
    response = pb.CommandConsumerStatsResponse(
        request_id=command.request_id,
        msgRateOut=rates.messages,
        msgThroughputOut=rates.size_bytes,
        msgRateRedeliver=rates.redelivered,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=unacked,
        blockedConsumerOnUnackedMsgs=consumer.blocked,
        address=consumer.link.address,
        connectedSince=str(consumer.options.connected_at_ms),
        type=kind_name(subscription.kind),
        msgRateExpired=client_rates.subscription_rates(subscription, now_s, window_s).expired,
        msgBacklog=subscription.backlog,
        messageAckRate=rates.acked,
    )
    connection.send(response)


HANDLERS = {
    pb.CommandFlow: CommandHandler(flow, is_quick=True),
    pb.CommandAck: CommandHandler(acknowledge, refuse_ack, is_quick=True),
    pb.CommandRedeliverUnacknowledgedMessages: CommandHandler(redeliver),
    pb.CommandUnsubscribe: CommandHandler(unsubscribe),
    pb.CommandCloseConsumer: CommandHandler(close_consumer),
    pb.CommandSeek: CommandHandler(seek),
    pb.CommandGetLastMessageId: CommandHandler(last_message_id),
    pb.CommandConsumerStats: CommandHandler(stats, refuse_with(pb.CommandConsumerStatsResponse)),
}
