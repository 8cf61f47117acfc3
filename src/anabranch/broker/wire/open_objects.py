"""The objects that a connection has opened, with the right that each needs and the way to take it away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.wire.attachments import Attached, Registered
from anabranch.broker.wire.pushes import OpenWatch, PushKey
from anabranch.errors import AnabranchError, AuthorizationError
from anabranch.rights.needs import Need, Right, on_topic

if TYPE_CHECKING:
    from anabranch.broker.wire.connection import ServerConnection


class OpenObject(NamedTuple):
    """A producer, consumer, registration or watch of a connection."""

    need: Need
    """The right without which it must not stay open."""
    end: Callable[[AuthorizationError], None]
    """Takes it away and notifies its client; does nothing if it is closed already."""


def open_objects(connection: ServerConnection) -> Iterator[OpenObject]:
    """The objects that a connection has open at the first step; some may be closed before their turn."""
    producers = (*connection.producers.values(), *connection.waiting.values())
    consumers = list(connection.consumers.values())
    registrations = list(connection.registrations.items())
    watches = list(connection.pushes.watches.items())
    for producer in producers:
        log = connection.producer_logs.get(producer.id)
        if log is not None:
            need = on_topic(Right.PRODUCE, log.name)
            yield OpenObject(need, partial(_end_producer, connection, producer))
    for attached in consumers:
        need = on_topic(Right.CONSUME, attached.segment.name, attached.subscription.name)
        yield OpenObject(need, partial(_end_consumer, connection, attached))
    for number, registered in registrations:
        need = on_topic(Right.CONSUME, registered.topic, registered.registration.subscription)
        yield OpenObject(need, partial(_end_registration, connection, number, registered))
    for key, watch in watches:
        yield OpenObject(watch.need, partial(_end_watch, connection, key, watch))


def _end_producer(connection: ServerConnection, producer: ServedProducer, error: AuthorizationError) -> None:
    """Store and answer the entries that were taken, and drop later ones; the client gets a CLOSE_PRODUCER."""
    if producer in (connection.producers.get(producer.id), connection.waiting.get(producer.id)):
        producer.cut_off()


def _end_consumer(connection: ServerConnection, attached: Attached, error: AuthorizationError) -> None:
    segment, subscription, consumer = attached
    if connection.consumers.get(consumer.id) is attached:
        segment.detach(subscription, consumer)
        consumer.close()


def _end_registration(
    connection: ServerConnection, number: int, registered: Registered, error: AuthorizationError
) -> None:
    """Give the member's segments to the others at once, and have its client register again, in vain."""
    if connection.registrations.get(number) is registered:
        registered.end()
        connection.services.tasks.spawn(_leave(registered))


async def _leave(registered: Registered) -> None:
    try:
        await registered.controller.leave(registered.registration)
    except AnabranchError:
        # Without a leader just now, the member is evicted after its grace period.
        registered.lost()


def _end_watch(
    connection: ServerConnection, key: PushKey, watch: OpenWatch, error: AuthorizationError
) -> None:
    if connection.pushes.watches.get(key) is watch:
        connection.pushes.end_session(key)
        watch.refuse(error)
