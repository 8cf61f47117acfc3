"""Credentials that expire on open connections: the broker asks for new ones, and disconnects without them.

One task looks at all connections once a second and compares with the wall clock. This needs no timer per
connection, and takes effect at once when the clock is set. The time that a client has to answer is measured
on the clock of the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Final

from anabranch.aio import in_slices
from anabranch.broker.wire.connection import ServerConnection
from anabranch.clock import Clock
from anabranch.protocol.connection import PROTOCOL_VERSION, SERVER_VERSION
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.security.audit import AuditEvent, AuditLog

LOOK_S: Final = 1.0
LOOKED_AT_ONCE: Final = 1000
"""Connections that are looked at in one turn of the event loop."""

REFRESH: Final = b"PulsarAuthRefresh"
"""The text of a challenge that asks for fresh credentials, as Pulsar's clients know it."""


class Expiry:
    """Challenges clients whose credentials expired, and disconnects those that do not answer."""

    def __init__(
        self, connections: Iterable[ServerConnection], clock: Clock, audit: AuditLog, answer_s: float
    ) -> None:
        """`answer_s` is how long a client may take to send new credentials."""
        self._connections = connections
        self._clock = clock
        self._audit = audit
        self._answer_s = answer_s
        self._challenged: dict[ServerConnection, float] = {}
        """The time by which each challenged connection has to answer."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(LOOK_S, self._answer_s))
            now_s = self._clock.wall_ms() / 1000
            async for connection in in_slices(list(self._connections), LOOKED_AT_ONCE):
                if connection.caller.expires_s <= now_s and not connection.ended:
                    self._expired(connection, loop.time())
                else:
                    self._challenged.pop(connection, None)
            self._challenged = {one: until for one, until in self._challenged.items() if not one.ended}

    def _expired(self, connection: ServerConnection, now: float) -> None:
        until = self._challenged.get(connection)
        if until is None and connection.refreshes:
            self._challenged[connection] = now + self._answer_s
            connection.send(challenge(connection.caller.method))
        elif until is None:
            self._disconnect(connection, "the credentials expired")
        elif now >= until:
            self._disconnect(connection, "the credentials expired, and the client sent no new ones in time")

    def _disconnect(self, connection: ServerConnection, reason: str) -> None:
        event = AuditEvent("expire", "refused", connection.caller, connection.address, reason=reason)
        self._audit.write(event)
        # The connection of a client that does not read takes a moment to close.
        self._challenged[connection] = math.inf
        connection.hang_up()


def challenge(method: str) -> pb.CommandAuthChallenge:
    """The request for fresh credentials."""
    return pb.CommandAuthChallenge(
        server_version=SERVER_VERSION,
        challenge=pb.AuthData(auth_method_name=method, auth_data=REFRESH),
        protocol_version=PROTOCOL_VERSION,
    )
