"""PRODUCER and CLOSE_PRODUCER; the connection passes a SEND to its producer without a handler."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from anabranch.broker.catalog import backlog_quotas
from anabranch.broker.serving.log.entry_checks import EntryRules
from anabranch.broker.serving.log.log_producers import known_sequences
from anabranch.broker.serving.log.producer import ProducerOptions, ServedProducer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.rates.publish_credit import CreditTotals
from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import check_encryption, close_once_begun, metadata_of, open_log
from anabranch.broker.wire.services import Services
from anabranch.errors import NotAllowedError, ServiceNotReadyError
from anabranch.model.inheritance import UNKNOWN
from anabranch.model.names import TopicName, validate_client_name, validate_subscription
from anabranch.model.ranges import FULL
from anabranch.protocol.frames import deliverable_bytes
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import SETTLE


async def open_producer(connection: ServerConnection, command: pb.CommandProducer) -> None:
    known = connection.producers.get(command.producer_id)
    if known is not None and command.epoch <= known.options.epoch:
        _answer(connection, command, connection.producer_logs[known.id], known)
        return
    with connection.openings.begin("producer", command.producer_id):
        await _open_producer(connection, command)


async def _open_producer(connection: ServerConnection, command: pb.CommandProducer) -> None:
    services = connection.services
    name = TopicName.parse(command.topic)
    validate_client_name("producer", command.producer_name)
    segment = await open_log(services, name, create=True)
    with segment.use.call():
        await _open_on(connection, command, segment)


async def _open_on(connection: ServerConnection, command: pb.CommandProducer, segment: ServedLog) -> None:
    services, name = connection.services, segment.name
    metadata = metadata_of(command.metadata)
    if metadata.get(SETTLE) == "true":
        await segment.log.flush()
        connection.send(_success(connection, command, segment, command.producer_name))
        return
    if not command.encrypted:
        check_encryption(services, name)
    schema = command.schema if command.HasField("schema") else None
    schema_version = b""
    if schema is not None or services.schemas.exist:
        schema_version = await services.schemas.admit_producer(name, schema, services.clock.wall_ms())
    if command.initial_subscription_name:
        subscription = validate_subscription(command.initial_subscription_name)
        await _subscribe_first(services, segment, subscription)
    producer = _make_producer(connection, command, segment, metadata)

    def promoted() -> None:
        if connection.waiting.pop(producer.id, None) is producer:
            connection.producers[producer.id] = producer
            _answer(connection, command, segment, producer, schema_version)

    producer.promoted = promoted
    backlog_quotas.check_room(segment, services.policies.of(name), services.clock.wall_ms())
    await services.quotas.admit_producer(segment.name, producer)
    with services.quotas.attaching(producer):
        ready = await segment.producers.attach(
            producer,
            fresh_name=not command.producer_name,
            topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        )
    if connection.openings.is_cancelled("producer", command.producer_id):
        segment.producers.detach(producer)
        raise ServiceNotReadyError("the client closed the producer before it was opened")
    (connection.producers if ready else connection.waiting)[producer.id] = producer
    connection.producer_logs[producer.id] = segment
    segment.throttle.join(producer.credit or connection)
    _answer(connection, command, segment, producer, schema_version)


def _make_producer(
    connection: ServerConnection, command: pb.CommandProducer, segment: ServedLog, metadata: Mapping[str, str]
) -> ServedProducer:
    services = connection.services
    options = ProducerOptions(
        epoch=command.epoch,
        mode=command.producer_access_mode,
        deduplicate=_deduplicates(services, segment),
        rules=_rules_for(connection, segment),
        metadata=metadata,
        connected_at_ms=services.clock.wall_ms(),
        principal=connection.caller.principal,
        throttle=segment.throttle,
        credits=_credits(services) if command.wants_credit else None,
    )
    name = command.producer_name or services.make_producer_name()
    return ServedProducer(connection, command.producer_id, name, segment.log, options)


def _deduplicates(services: Services, segment: ServedLog) -> bool:
    """Whether repeated messages are recognised. A live topic does not remember any."""
    return not segment.name.is_live and services.policies.of(segment.name).deduplicate


def _credits(services: Services) -> CreditTotals | None:
    return services.quotas.book.throttles.credits if services.room.credit_bytes else None


def _rules_for(connection: ServerConnection, segment: ServedLog) -> EntryRules:
    services = connection.services
    policies = services.policies.of(segment.name)
    rules = EntryRules(
        bytes_max=deliverable_bytes(services.config.max_message_bytes),
        topic_bytes_max=policies.message_bytes_max,
        encrypted=policies.encryption_required,
    )
    if segment.name.segment is None:
        return rules
    # Other clients may route by another part of the hash, as Java's 5.0.0-M1 does.
    ring = segment.name.segment.range if connection.peer_is_ours else FULL
    return replace(rules, splits=segment.use.splits, is_segment=True, ring=ring)


async def _subscribe_first(services: Services, segment: ServedLog, subscription: str) -> None:
    """Create the subscription that must exist before the first message."""
    if not services.policies.of(segment.name).creates_subscriptions:
        raise NotAllowedError(
            f"subscriptions of {segment.name} are not created on first use; create it first"
        )
    if segment.name.is_segment:
        controller = await services.controllers.controller(segment.name.topic)
        await controller.ensure_subscription(subscription, "QUEUE", "earliest")
    else:
        await services.quotas.admit_classic(segment, subscription)
        await segment.subscription(subscription, durable=True, ordinal=segment.log.extent.first_ordinal)


def _answer(
    connection: ServerConnection,
    command: pb.CommandProducer,
    segment: ServedLog,
    producer: ServedProducer,
    schema_version: bytes = b"",
) -> None:
    """Notify the client of its producer, which may send or has to wait."""
    response = _success(connection, command, segment, producer.name)
    response.schema_version = schema_version
    response.producer_ready = producer.id in connection.producers
    producers = segment.producers
    if producers.exclusive is producer and producers.topic_epoch is not None:
        response.topic_epoch = producers.topic_epoch
    if producer.credit is not None:
        # The client must know its credit before it may send.
        connection.room.grant()
        producer.credit.grant()
    connection.send(response)


def _success(
    connection: ServerConnection, command: pb.CommandProducer, segment: ServedLog, name: str
) -> pb.CommandProducerSuccess:
    own = inherited = UNKNOWN
    if _deduplicates(connection.services, segment):
        known = known_sequences(segment.log.sequences, name, connection.caller.principal)
        own, inherited = known.own, known.inherited.highest
    return pb.CommandProducerSuccess(
        request_id=command.request_id,
        producer_name=name,
        last_sequence_id=max(own, inherited),
        schema_version=b"",
        producer_ready=True,
        own_sequence_id=own if connection.peer_is_ours else None,
    )


def close_producer(
    connection: ServerConnection, command: pb.CommandCloseProducer
) -> Coroutine[Any, Any, None] | None:
    """Close a producer once all its SENDs are answered. An unknown producer is already closed."""
    close = partial(_close_producer, connection, command)
    return close_once_begun(connection, "producer", command.producer_id, close)


def _close_producer(connection: ServerConnection, command: pb.CommandCloseProducer) -> None:
    producers, waiting = connection.producers, connection.waiting
    producer = producers.get(command.producer_id) or waiting.get(command.producer_id)
    if producer is None:
        connection.send(pb.CommandSuccess(request_id=command.request_id))
        return
    segment = connection.producer_logs[command.producer_id]
    connection.forget_producer(command.producer_id)

    def closed() -> None:
        segment.producers.detach(producer)
        connection.send(pb.CommandSuccess(request_id=command.request_id))

    producer.when_idle(closed)


HANDLERS = {
    pb.CommandProducer: CommandHandler(open_producer),
    pb.CommandCloseProducer: CommandHandler(close_producer),
}
