"""SUBSCRIBE: admit a consumer, by the owner's roster or the leader's word, and attach it to a log."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.broker.serving.delivery.consumer import ConsumerOptions, ServedConsumer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.reading.strategies import kind_name
from anabranch.broker.serving.subscription.acknowledging import position_from
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.broker.wire import java_m1
from anabranch.broker.wire.attachments import Attached
from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import check_known, metadata_of, open_log
from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.errors import AnabranchError, ConsumerBusyError, NotAllowedError, ServiceNotReadyError
from anabranch.ledger.storage import EntryPlaces
from anabranch.metadata.records import InitialPosition, SubscriptionKind
from anabranch.model.names import TopicName, validate_client_name, validate_subscription
from anabranch.model.ranges import LAST_SLOT, HashRange
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import BUCKET_HASHES, START_INDEX
from anabranch.rights.names import is_foreign


async def subscribe(connection: ServerConnection, command: pb.CommandSubscribe) -> None:
    if command.consumer_id in connection.consumers:
        connection.send(pb.CommandSuccess(request_id=command.request_id))
        return
    with connection.openings.begin("consumer", command.consumer_id):
        await _subscribe(connection, command)


async def _subscribe(connection: ServerConnection, command: pb.CommandSubscribe) -> None:
    services = connection.services
    name = TopicName.parse(command.topic)
    validate_subscription(command.subscription)
    validate_client_name("consumer", command.consumer_name)
    ordered = command.subType in (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)
    if command.read_compacted and not ordered:
        raise NotAllowedError("read_compacted needs an Exclusive or Failover subscription")
    if command.read_compacted and (name.is_segment or name.is_live):
        raise NotAllowedError("only persistent:// topics are compacted; subscribe without read_compacted")
    if (kind := kind_name(command.subType)) not in services.policies.of(name).subscription_types:
        raise NotAllowedError(f"{name} has no {kind} subscriptions: subscriptionTypesEnabled")
    metadata = metadata_of(command.metadata)
    if name.segment is None and command.durable and command.HasField("opened_in"):
        # The classic log belongs to a scalable topic, whose leader makes the subscription on all its logs.
        controller = await services.controllers.controller(name.partitioned_topic.topic)
        start = _start_name(command)
        await controller.ensure_subscription(command.subscription, _kind(command), start, command.opened_in)
    segment = await open_log(services, name, create=command.force_topic_creation)
    with segment.use.call():
        await _subscribe_to(connection, command, segment, metadata)


async def _subscribe_to(
    connection: ServerConnection,
    command: pb.CommandSubscribe,
    segment: ServedLog,
    metadata: dict[str, str],
) -> None:
    services, name = connection.services, segment.name
    admission = Admission()
    if command.durable:
        await check_known(services, name, command.subscription)
    if name.segment is not None and command.durable:
        admission = _admit_by_roster(connection, segment, command) or await _admit(connection, name, command)
    if command.HasField("schema"):
        now_ms = services.clock.wall_ms()
        await services.schemas.admit_consumer(name, command.schema, now_ms, idle=_is_idle(segment))
    consumer = _make_consumer(connection, command, metadata, admission)
    await services.quotas.admit_consumer(name, command.subscription, consumer)
    with services.quotas.attaching(consumer):
        await _open_consumer(connection, command, segment, consumer, admission)


def _is_idle(segment: ServedLog) -> bool:
    """Whether the log is empty and has no producer, so that a consumer may choose the schema."""
    extent = segment.log.extent
    return not segment.producers.attached and extent.first_ordinal == extent.next_ordinal


async def _open_consumer(
    connection: ServerConnection,
    command: pb.CommandSubscribe,
    segment: ServedLog,
    consumer: ServedConsumer,
    admission: Admission,
) -> None:
    """Attach an admitted consumer to its subscription, which is created if it is new, and answer."""
    services = connection.services
    if command.durable:
        await services.quotas.admit_classic(segment, command.subscription)
    subscription = await segment.subscription(
        command.subscription,
        durable=command.durable,
        ordinal=_start(segment, command, consumer.options.metadata, services.clock.wall_ms()),
        properties={pair.key: pair.value for pair in command.subscription_properties},
    )
    if admission.roster is not None:
        subscription.restrict(admission.roster)
    attached = Attached(segment, subscription, consumer)
    if command.subType == pb.CommandSubscribe.Exclusive and command.durable:
        await _detach_dead(segment, subscription)
        waits = segment.name.is_segment and connection.is_java_m1
        if waits and not await java_m1.wait_for_former_reader(services, attached):
            services.quotas.usage.discard(consumer)
            java_m1.attach_and_close(connection, command)
            return
    await _attach(connection, command, attached)
    success = pb.CommandSuccess(request_id=command.request_id)
    if connection.peer_is_ours:
        success = pb.CommandSuccess(
            request_id=command.request_id,
            incarnation=admission.incarnation,
            log_id=services.logs.stores.identity(segment.store, segment.log),
        )
    connection.send(success)
    subscription.notify_attached()


def _make_consumer(
    connection: ServerConnection,
    command: pb.CommandSubscribe,
    metadata: Mapping[str, str],
    admission: Admission,
) -> ServedConsumer:
    services = connection.services
    policies = services.policies.of(TopicName.parse(command.topic))
    has_epoch = command.HasField("consumer_epoch") and command.consumer_epoch != NO_ID
    options = ConsumerOptions(
        priority=command.priority_level,
        unacked_max=policies.unacked_of_consumer_max,
        unacked_of_all_max=policies.unacked_of_all_max,
        epoch=command.consumer_epoch if has_epoch else None,
        metadata=metadata,
        connected_at_ms=services.clock.wall_ms(),
        member=admission.member,
        generation=admission.generation,
        read_compacted=command.read_compacted,
        principal=connection.caller.principal,
        bucket_hashes=None if command.durable else _wanted_hashes(metadata),
    )
    return ServedConsumer(connection, command.consumer_id, command.consumer_name, options)


async def _attach(connection: ServerConnection, command: pb.CommandSubscribe, attached: Attached) -> None:
    segment, subscription, consumer = attached
    try:
        async with subscription.busy:
            if connection.openings.is_cancelled("consumer", command.consumer_id):
                raise ServiceNotReadyError("the client closed the consumer before it was attached")
            if segment.subscriptions.get(subscription.name) is not subscription:
                raise ServiceNotReadyError(f"{subscription.name} is being deleted")
            if not connection.is_java_m1 and subscription.reader_state(consumer, command.subType) != "reads":
                raise ConsumerBusyError(
                    f"{segment.name} was assigned to another consumer while {consumer.name} attached"
                )
            _check_name(subscription, consumer, command)
            subscription.add(consumer, command.subType, command.keySharedMeta)
    except AnabranchError:
        segment.forget_unused(subscription)
        raise
    connection.consumers[consumer.id] = attached


def _check_name(subscription: Subscription, consumer: ServedConsumer, command: pb.CommandSubscribe) -> None:
    """ConsumerBusyError if another role's consumer has the name: readers are chosen by name.

    In a Shared subscription names decide nothing, and several consumers may have the same name.
    """
    if command.subType != pb.CommandSubscribe.Shared and any(
        holder.name == consumer.name and is_foreign(holder.options.principal, consumer.options.principal)
        for holder in subscription.consumers
    ):
        raise ConsumerBusyError(
            f"the consumer name {consumer.name} belongs to another role; choose another consumer name"
        )


def _admit_by_roster(
    connection: ServerConnection, segment: ServedLog, command: pb.CommandSubscribe
) -> Admission | None:
    """Admit a member whose assignment is in this owner's roster; None if the leader has to be asked."""
    known = segment.subscriptions.get(command.subscription)
    roster = None if known is None else known.admitting
    if roster is None or _kind(command) == "QUEUE" or not command.HasField("generation"):
        return None
    if command.HasField("opened_in") and command.opened_in != roster.incarnation:
        return None
    by_buckets = command.subType == pb.CommandSubscribe.Key_Shared
    principal = connection.caller.principal
    name, generation = command.consumer_name, command.generation
    if not roster.admits(name, generation, by_buckets=by_buckets, principal=principal):
        return None
    return Admission(command.consumer_name, command.generation, incarnation=roster.incarnation)


async def _admit(connection: ServerConnection, name: TopicName, command: pb.CommandSubscribe) -> Admission:
    """Ask the leader, which makes a durable subscription on all segments of the topic or on none."""
    assert name.segment is not None
    controller = await connection.services.controllers.controller(name.topic)
    request = AttachRequest(
        segment_id=name.segment.id,
        consumer_name=command.consumer_name,
        kind=_kind(command),
        start=_start_name(command),
        generation=command.generation if command.HasField("generation") else None,
        opened_in=command.opened_in if command.HasField("opened_in") else None,
        principal=connection.caller.principal,
    )
    return await controller.admit(command.subscription, request)


def _kind(command: pb.CommandSubscribe) -> SubscriptionKind:
    return "QUEUE" if command.subType == pb.CommandSubscribe.Shared else "STREAM"


def _start_name(command: pb.CommandSubscribe) -> InitialPosition:
    return "earliest" if command.initialPosition == pb.CommandSubscribe.Earliest else "latest"


def _start(segment: ServedLog, command: pb.CommandSubscribe, metadata: Mapping[str, str], now_ms: int) -> int:
    """The first entry that a new subscription reads."""
    log = segment.log
    places: EntryPlaces = segment.compacted if command.read_compacted else log.extent
    if not command.durable:
        index = metadata.get(START_INDEX)
        if index is not None:
            if not index.isdecimal():
                raise NotAllowedError(f"{START_INDEX} must be a number, not {index!r}")
            return log.extent.ordinal_of_index(int(index))
        if command.HasField("start_message_id") and not command.start_message_rollback_duration_sec:
            return places.ordinal_of(position_from(command.start_message_id))
    if command.start_message_rollback_duration_sec:
        return log.extent.ordinal_at_time(now_ms - 1000 * command.start_message_rollback_duration_sec)
    if command.initialPosition == pb.CommandSubscribe.Earliest:
        return places.first_ordinal
    return log.extent.next_ordinal


def _wanted_hashes(metadata: Mapping[str, str]) -> HashRange | None:
    """The bucket hashes that a bulk reader asks for; None for all."""
    given = metadata.get(BUCKET_HASHES)
    if given is None:
        return None
    low, _, high = given.partition("-")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high) <= LAST_SLOT):
        raise NotAllowedError(f"{BUCKET_HASHES} must be two ascending numbers below 65536, not {given!r}")
    return HashRange(int(low), int(high))


async def _detach_dead(segment: ServedLog, subscription: Subscription) -> None:
    """Detach exclusive consumers whose peers are dead, before a new consumer is refused for them."""
    for holder in list(subscription.consumers):
        if not await holder.link.alive():
            segment.detach(subscription, holder)


HANDLERS = {pb.CommandSubscribe: CommandHandler(subscribe)}
