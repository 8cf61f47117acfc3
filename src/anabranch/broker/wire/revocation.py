"""Takes open objects away from roles that lost their rights, on every broker and without a check per message.

When grants of a tenant or namespace change, each open object there is judged again. Must not know commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from anabranch.aio import TaskRegistry, in_slices
from anabranch.broker.catalog.authorizer import Authorizer
from anabranch.broker.wire.open_objects import OpenObject, open_objects
from anabranch.errors import AuthorizationError
from anabranch.rights.decide import RightsDecision
from anabranch.rights.needs import Need
from anabranch.security.audit import AuditEvent, AuditLog

if TYPE_CHECKING:
    from anabranch.broker.wire.connection import ServerConnection

_logger = logging.getLogger(__name__)

CHECKED_AT_ONCE: Final = 200
"""Objects that are judged in one turn of the event loop."""
RETRY_S: Final = 0.5
"""Delay before grants that could not be read are read again."""

REVOKE: Final = "revoke"
"""The action in the audit log."""
ALL: Final = ""
"""Stands for every tenant and namespace."""


class Revocation:
    """Judges the open objects of all connections again when grants change."""

    def __init__(
        self,
        authorizer: Authorizer,
        connections: Collection[ServerConnection],
        tasks: TaskRegistry,
        audit: AuditLog,
    ) -> None:
        self._authorizer = authorizer
        self._connections = connections
        self._tasks = tasks
        self._audit = audit
        self._names: set[str] = set()
        """Tenants, and namespaces as `tenant/namespace`, whose grants changed."""
        self._late: dict[ServerConnection, None] = {}
        """Connections to judge as a whole."""
        self._running = False
        authorizer.grants.watch(self._changed)

    def check(self, connection: ServerConnection) -> None:
        """Judge all objects of one connection: its role changed, or grants did while it opened an object."""
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
                    # An unreadable grant ends no object: the right may well be there.
                    _logger.warning("changed rights could not be read, and will be read again: %s", error)
                    self._names |= names
                    self._late |= late
                    await asyncio.sleep(RETRY_S)
        finally:
            self._running = False

    async def _judge(self, connections: Iterable[ServerConnection], names: Collection[str]) -> None:
        async for connection, one in in_slices(_objects(connections), CHECKED_AT_ONCE):
            if not concerns(names, one.need):
                continue
            decision = await self._authorizer.decide(connection.caller, one.need)
            if not decision.allowed:
                self._end(connection, one, decision)

    def _end(self, connection: ServerConnection, one: OpenObject, decision: RightsDecision) -> None:
        caller, address, need = connection.caller, connection.address, one.need
        self._audit.write(AuditEvent(REVOKE, "refused", caller, address, need.resource, decision.reason))
        try:
            one.end(AuthorizationError(f"{need.resource} needs {need.right.value}"))
        except Exception:
            # The other objects must not stay open for it.
            _logger.exception("%s of %s could not be ended", need.resource, address)


def _objects(
    connections: Iterable[ServerConnection],
) -> Iterable[tuple[ServerConnection, OpenObject]]:
    for connection in connections:
        if not connection.is_peer:
            for one in open_objects(connection):
                yield connection, one


def concerns(names: Collection[str], need: Need) -> bool:
    """Whether the change of these tenants and namespaces may concern a right."""
    return ALL in names or need.tenant in names or need.namespace_name in names
