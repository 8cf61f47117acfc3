"""FLOW, ACK, redelivery, UNSUBSCRIBE and CLOSE_CONSUMER."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import attached_consumer, close_once_begun
from anabranch.errors import ConsumerNotFoundError, MetadataError, NotAllowedError
from anabranch.protocol.pb import pulsar_pb2 as pb

_send_ack_error = refuse_with(pb.CommandAckResponse, "consumer_id", "request_id")


def flow(connection: ServerConnection, command: pb.CommandFlow) -> None:
    attached = connection.consumers.get(command.consumer_id)
    if attached is not None:
        attached.subscription.flow(attached.consumer, command.messagePermits)


def acknowledge(connection: ServerConnection, command: pb.CommandAck) -> None:
    """Take an ACK; that of a consumer which is gone changes nothing and is answered with an error."""
    attached = connection.consumers.get(command.consumer_id)
    if attached is None:
        raise ConsumerNotFoundError(f"consumer {command.consumer_id} is not attached")
    _, subscription, consumer = attached
    if command.txnid_most_bits or command.txnid_least_bits:
        raise NotAllowedError("transactions are not supported by this broker")
    subscription.acknowledge(consumer, command)
    if command.HasField("request_id"):
        response = pb.CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
        subscription.answers.add(connection, response)


def redeliver(connection: ServerConnection, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
    attached = connection.consumers.get(command.consumer_id)
    if attached is not None:
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        attached.subscription.redeliver(attached.consumer, command.message_ids, epoch)


async def unsubscribe(connection: ServerConnection, command: pb.CommandUnsubscribe) -> None:
    """Delete a subscription; that of a segment belongs to the topic and is deleted on all segments."""
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


HANDLERS = {
    pb.CommandFlow: CommandHandler(flow),
    pb.CommandAck: CommandHandler(acknowledge, refuse_ack),
    pb.CommandRedeliverUnacknowledgedMessages: CommandHandler(redeliver),
    pb.CommandUnsubscribe: CommandHandler(unsubscribe),
    pb.CommandCloseConsumer: CommandHandler(close_consumer),
}
