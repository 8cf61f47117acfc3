"""Takes open objects away from roles that lost their rights, on every broker and without a check per message.

When grants of a tenant or namespace change, each open object there is judged again. Must not know commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol

from anabranch.aio import TaskRegistry, in_slices
from anabranch.broker.catalog.authorizer import Authorizer
from anabranch.broker.serving.context import Spawn
from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.wire.attachments import Attached, Registered
from anabranch.broker.wire.pushes import OpenWatch, Pushes, PushKey
from anabranch.errors import AnabranchError, AuthorizationError
from anabranch.rights.callers import Caller
from anabranch.rights.decide import RightsDecision
from anabranch.rights.needs import Need, Right, on_topic
from anabranch.security.audit import AuditEvent, AuditLog

_logger = logging.getLogger(__name__)

CHECKED_AT_ONCE: Final = 200
"""Objects that are judged in one turn of the event loop."""
RETRY_S: Final = 0.5
"""Delay before grants that could not be read are read again."""

REVOKE: Final = "revoke"
"""The action in the audit log."""
ALL: Final = ""
"""Stands for every tenant and namespace."""


class OpenConnection(Protocol):
    """A connection, as far as its objects can be listed and taken away."""

    producers: dict[int, ServedProducer]
    waiting: dict[int, ServedProducer]
    producer_logs: dict[int, ServedLog]
    consumers: dict[int, Attached]
    registrations: dict[int, Registered]
    pushes: Pushes
    caller: Caller
    address: str
    is_peer: bool


class OpenObject(NamedTuple):
    """A producer, consumer, registration or watch of a connection."""

    need: Need
    """The right without which it must not stay open."""
    end: Callable[[AuthorizationError], None]
    """Takes it away and notifies its client; does nothing if it is closed already."""


class Revocation:
    """Judges the open objects of all connections again when grants change."""

    def __init__(
        self,
        authorizer: Authorizer,
        connections: Collection[OpenConnection],
        tasks: TaskRegistry,
        audit: AuditLog,
    ) -> None:
        self._authorizer = authorizer
        self._connections = connections
        self._tasks = tasks
        self._audit = audit
        self._names: set[str] = set()
        """Tenants, and namespaces as `tenant/namespace`, whose grants changed."""
        self._late: dict[OpenConnection, None] = {}
        """Connections to judge as a whole."""
        self._running = False
        authorizer.grants.watch(self._changed)

    def check(self, connection: OpenConnection) -> None:
        """Judge all objects of one connection: its role changed, or grants changed while it opened one."""
        if self._authorizer.enabled:
            self._late[connection] = None
            self._run()

    def _changed(self, name: str) -> None:
        self._names.add(name)
        self._run()

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self._tasks.spawn(self._judge_all())

    async def _judge_all(self) -> None:
        try:
            while self._names or self._late:
                names, self._names = self._names, set()
                late, self._late = self._late, {}
                try:
                    await self._judge(list(self._connections), names)
                    await self._judge(late, {ALL})
                except Exception as error:
                    # Objects stay open while grants cannot be read, because the role may still have its
                    # right.
                    _logger.warning("changed rights could not be read, and will be read again: %s", error)
                    self._names |= names
                    self._late |= late
                    await asyncio.sleep(RETRY_S)
        finally:
            self._running = False

    async def _judge(self, connections: Iterable[OpenConnection], names: Collection[str]) -> None:
        async for connection, one in in_slices(self._objects(connections), CHECKED_AT_ONCE):
            if not concerns(names, one.need):
                continue
            decision = await self._authorizer.decide(connection.caller, one.need)
            if not decision.allowed:
                self._end(connection, one, decision)

    def _objects(self, connections: Iterable[OpenConnection]) -> Iterator[tuple[OpenConnection, OpenObject]]:
        for connection in connections:
            if not connection.is_peer:
                for one in open_objects(connection, self._tasks.spawn):
                    yield connection, one

    def _end(self, connection: OpenConnection, one: OpenObject, decision: RightsDecision) -> None:
        caller, address, need = connection.caller, connection.address, one.need
        self._audit.write(AuditEvent(REVOKE, "refused", caller, address, need.resource, decision.reason))
        try:
            one.end(AuthorizationError(f"{need.resource} needs {need.right.value}"))
        except Exception:
            # One failure must not keep the other objects open.
            _logger.exception("%s of %s could not be ended", need.resource, address)


def concerns(names: Collection[str], need: Need) -> bool:
    """Whether the change of these tenants and namespaces may concern a right."""
    return ALL in names or need.tenant in names or need.namespace_name in names


def open_objects(connection: OpenConnection, spawn: Spawn) -> Iterator[OpenObject]:
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
        yield OpenObject(need, partial(_end_registration, connection, number, registered, spawn))
    for key, watch in watches:
        yield OpenObject(watch.need, partial(_end_watch, connection, key, watch))


def _end_producer(connection: OpenConnection, producer: ServedProducer, error: AuthorizationError) -> None:
    """Store and answer the entries that were taken, and drop later ones; the client gets a CLOSE_PRODUCER."""
    if producer in (connection.producers.get(producer.id), connection.waiting.get(producer.id)):
        producer.cut_off()


def _end_consumer(connection: OpenConnection, attached: Attached, error: AuthorizationError) -> None:
    segment, subscription, consumer = attached
    if connection.consumers.get(consumer.id) is attached:
        segment.detach(subscription, consumer)
        consumer.close()


def _end_registration(
    connection: OpenConnection, number: int, registered: Registered, spawn: Spawn, error: AuthorizationError
) -> None:
    """Give the member's segments to the others at once, and have its client register again, to be refused."""
    if connection.registrations.get(number) is registered:
        registered.end()
        spawn(_leave(registered))


async def _leave(registered: Registered) -> None:
    try:
        await registered.controller.leave(registered.registration)
    except AnabranchError:
        # If there is no leader now, the next leader evicts the member after its grace period.
        registered.lost()


def _end_watch(connection: OpenConnection, key: PushKey, watch: OpenWatch, error: AuthorizationError) -> None:
    if connection.pushes.watches.get(key) is watch:
        connection.pushes.end_session(key)
        watch.refuse(error)
