"""SUBSCRIBE, FLOW, ACK, redelivery, UNSUBSCRIBE and CLOSE_CONSUMER."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from anabranch.broker.serving.acknowledging import position_from
from anabranch.broker.serving.consumer import ConsumerOptions, ServedConsumer
from anabranch.broker.serving.served_log import ServedLog
from anabranch.broker.serving.subscription import Subscription
from anabranch.broker.wire import java_m1
from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import Attached, ServerConnection
from anabranch.broker.wire.handlers.attach import bounded, metadata_of, open_log
from anabranch.broker.wire.services import Services
from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.ports.segments import StartAt
from anabranch.errors import (
    AnabranchError,
    ConsumerBusyError,
    ConsumerNotFoundError,
    MetadataError,
    NotAllowedError,
    ServiceNotReadyError,
)
from anabranch.metadata.records import SubscriptionKind
from anabranch.model.names import TopicName, validate_subscription
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import START_INDEX
from anabranch.protocol.wire_errors import code_for


async def subscribe(connection: ServerConnection, command: pb.CommandSubscribe) -> None:
    if command.consumer_id in connection.consumers:
        connection.send(pb.CommandSuccess(request_id=command.request_id))
        return
    with connection.opening("consumer", command.consumer_id):
        await _subscribe(connection, command)


async def _subscribe(connection: ServerConnection, command: pb.CommandSubscribe) -> None:
    services = connection.services
    name = TopicName.parse(command.topic)
    validate_subscription(bounded(command.subscription))
    _check(command)
    grant = Admission()
    if command.durable:
        grant = _admit_by_roster(services, name, command) or await _admit(services, name, command)
    segment = await open_log(services, name, create=command.force_topic_creation)
    metadata = metadata_of(command.metadata)
    if command.HasField("schema"):
        await services.schemas.register(name, command.schema, services.clock.wall_ms())
    subscription = await segment.subscription(
        command.subscription,
        durable=command.durable,
        ordinal=_start(segment, command, metadata, services.clock.wall_ms()),
        properties={pair.key: pair.value for pair in command.subscription_properties},
    )
    if grant.roster is not None:
        subscription.restrict(grant.roster)
    consumer = ServedConsumer(
        connection,
        command.consumer_id,
        bounded(command.consumer_name),
        ConsumerOptions(
            priority=command.priority_level,
            unacked_max=services.config.max_unacked_per_consumer or 2**62,
            epoch=_epoch(command),
            metadata=metadata,
            connected_at_ms=services.clock.wall_ms(),
            member=grant.member,
            generation=grant.generation,
        ),
    )
    if command.subType == pb.CommandSubscribe.Exclusive and command.durable:
        await _detach_dead(segment, subscription)
        waits = name.is_segment and connection.is_java_m1
        if waits and not await java_m1.wait_for_former_reader(services, name, subscription, consumer):
            java_m1.attach_and_close(connection, command)
            return
    try:
        async with subscription.busy:
            if connection.opening_cancelled("consumer", command.consumer_id):
                raise ServiceNotReadyError("the client gave the consumer up")
            if segment.subscriptions.get(subscription.name) is not subscription:
                raise ServiceNotReadyError(f"{subscription.name} is being deleted")
            if not connection.is_java_m1 and subscription.reader_state(consumer, command.subType) != "reads":
                raise ConsumerBusyError(
                    f"{name} was assigned to another consumer while {consumer.member} attached"
                )
            subscription.add(consumer, command.subType, command.keySharedMeta)
    except AnabranchError:
        segment.forget_unused(subscription)
        raise
    connection.consumers[consumer.id] = Attached(segment, subscription, consumer)
    incarnation = grant.incarnation if connection.peer_is_ours else None
    connection.send(pb.CommandSuccess(request_id=command.request_id, incarnation=incarnation))
    subscription.notify_attached()


def _check(command: pb.CommandSubscribe) -> None:
    ordered = command.subType in (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)
    if command.read_compacted and not ordered:
        raise NotAllowedError("read_compacted needs an Exclusive or Failover subscription")


def _admit_by_roster(services: Services, name: TopicName, command: pb.CommandSubscribe) -> Admission | None:
    """Let a member attach whose assignment this owner's roster knows; None when the leader has to say."""
    queue = command.subType == pb.CommandSubscribe.Shared
    if name.segment is None or queue or not command.HasField("generation"):
        return None
    segment = services.logs.get(name)
    known = None if segment is None else segment.subscriptions.get(command.subscription)
    roster = None if known is None else known.admitting
    if roster is None or (command.HasField("opened_in") and command.opened_in != roster.incarnation):
        return None
    by_buckets = command.subType == pb.CommandSubscribe.Key_Shared
    if not roster.admits(command.consumer_name, command.generation, by_buckets=by_buckets):
        return None
    return Admission(command.consumer_name, command.generation, roster, roster.incarnation)


async def _admit(services: Services, name: TopicName, command: pb.CommandSubscribe) -> Admission:
    """A durable subscription is on all segments of a topic or on none, so its leader makes it and lets in.

    For a classic log it is asked by those who know that the log is part of a scalable topic by now.
    """
    opened_in = command.opened_in if command.HasField("opened_in") else None
    if name.segment is None and opened_in is None:
        return Admission()
    controller = await services.controllers.controller(name.partitioned_topic.topic)
    kind: SubscriptionKind = "QUEUE" if command.subType == pb.CommandSubscribe.Shared else "STREAM"
    start: StartAt = "earliest" if command.initialPosition == pb.CommandSubscribe.Earliest else "latest"
    if name.segment is None:
        await controller.ensure_subscription(command.subscription, kind, start, opened_in)
        return Admission()
    return await controller.admit(
        command.subscription,
        AttachRequest(
            segment_id=name.segment.id,
            consumer_name=bounded(command.consumer_name),
            kind=kind,
            start=start,
            generation=command.generation if command.HasField("generation") else None,
            opened_in=opened_in,
        ),
    )


def _start(segment: ServedLog, command: pb.CommandSubscribe, metadata: dict[str, str], now_ms: int) -> int:
    """The first entry of a new subscription."""
    log = segment.log
    if not command.durable:
        index = metadata.get(START_INDEX)
        if index is not None:
            if not index.isdecimal():
                raise NotAllowedError(f"{START_INDEX} must be a number, not {index!r}")
            return log.extent.ordinal_of_index(int(index))
        if command.HasField("start_message_id") and not command.start_message_rollback_duration_sec:
            return log.extent.ordinal_of(position_from(command.start_message_id))
    if command.start_message_rollback_duration_sec:
        return log.extent.ordinal_at_time(now_ms - 1000 * command.start_message_rollback_duration_sec)
    if command.initialPosition == pb.CommandSubscribe.Earliest:
        return log.extent.first_ordinal
    return log.extent.next_ordinal


async def _detach_dead(segment: ServedLog, subscription: Subscription) -> None:
    """Detach exclusive consumers whose peers are dead, before a new consumer is refused for them."""
    for holder in list(subscription.consumers):
        if not await holder.link.alive():
            segment.detach(subscription, holder)


def _epoch(command: pb.CommandSubscribe) -> int | None:
    given = command.HasField("consumer_epoch") and command.consumer_epoch != NO_ID
    return command.consumer_epoch if given else None


def flow(connection: ServerConnection, command: pb.CommandFlow) -> None:
    attached = connection.consumers.get(command.consumer_id)
    if attached is not None:
        attached.subscription.flow(attached.consumer, command.messagePermits)


def acknowledge(connection: ServerConnection, command: pb.CommandAck) -> None:
    """An ACK of a consumer that is gone changes nothing, and whoever asks for an answer hears so."""
    attached = connection.consumers.get(command.consumer_id)
    if attached is None:
        gone = ConsumerNotFoundError(f"consumer {command.consumer_id} is not attached")
        refuse_ack(connection, command, gone)
        return
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
    """A subscription of a segment is one of its topic, and goes from all segments."""
    attached = connection.consumers.get(command.consumer_id)
    if attached is None:
        raise MetadataError(f"consumer {command.consumer_id} is not known")
    segment, subscription, consumer = attached
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
    number = command.consumer_id
    if number in connection.consumers or connection.cancel_opening("consumer", number):
        _close_consumer(connection, command)
        return None
    return _close_late(connection, command)


async def _close_late(connection: ServerConnection, command: pb.CommandCloseConsumer) -> None:
    """Close a consumer whose SUBSCRIBE came in the same read; the task of the SUBSCRIBE has begun by now."""
    connection.cancel_opening("consumer", command.consumer_id)
    _close_consumer(connection, command)


def _close_consumer(connection: ServerConnection, command: pb.CommandCloseConsumer) -> None:
    attached = connection.consumers.pop(command.consumer_id, None)
    if attached is not None:
        attached.segment.detach(attached.subscription, attached.consumer)
    connection.send(pb.CommandSuccess(request_id=command.request_id))


def refuse_ack(connection: ServerConnection, command: pb.CommandAck, error: Exception) -> None:
    if command.HasField("request_id"):
        connection.send(
            pb.CommandAckResponse(
                consumer_id=command.consumer_id,
                request_id=command.request_id,
                error=code_for(error),
                message=str(error),
            )
        )


HANDLERS = {
    pb.CommandSubscribe: CommandHandler(subscribe),
    pb.CommandFlow: CommandHandler(flow),
    pb.CommandAck: CommandHandler(acknowledge, refuse_ack),
    pb.CommandRedeliverUnacknowledgedMessages: CommandHandler(redeliver),
    pb.CommandUnsubscribe: CommandHandler(unsubscribe),
    pb.CommandCloseConsumer: CommandHandler(close_consumer),
}
