"""The broker's side towards clients: accepts connections, proves callers, and runs their commands."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final

from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.expiry import Expiry
from anabranch.broker.wire.handlers import handlers_for
from anabranch.broker.wire.handshake import Handshake
from anabranch.broker.wire.services import Services
from anabranch.errors import VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.protocol.connection import ServerMachine
from anabranch.transport.door import Listener
from anabranch.transport.fair_pump import FairPump
from anabranch.transport.pump import Pump

FLUSH_S: Final = 5.0
"""How long a stop waits for the disk."""

MESSAGE_BYTES: Final = "/message-bytes-max"


class Reception:
    """All connections of one broker."""

    def __init__(
        self, services: Services, connections: dict[ServerConnection, None], endpoint: Endpoint
    ) -> None:
        """`connections` gets every connection from the end of its handshake until it is gone."""
        self.connections = connections
        self._services = services
        self._handlers = handlers_for(services.engine.traits)
        self._endpoint = endpoint
        self._servers: Sequence[Listener] = ()
        self._message_bytes_max = services.config.max_message_bytes

    async def prepare(self) -> None:
        """Find out the message size that clients must accept. Call it before `listen`."""
        store, configured = self._services.records.store, self._services.config.max_message_bytes
        self._message_bytes_max = await largest_message_bytes(store, configured)

    async def listen(self) -> None:
        self._servers = await self._endpoint.listen(self._services.limits.door)

    def upkeep(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The work that looks after connections for as long as the broker runs."""
        gate, clock = self._services.gate, self._services.clock
        if not gate.is_open:
            answer_s = self._services.config.authentication_refresh_check_s
            yield Expiry(self.connections, clock, gate.audit, answer_s).run()

    def make_pump(self) -> Pump:
        """The pump of a connection that was just accepted."""
        config, traits = self._services.config, self._services.engine.traits
        machine = ServerMachine(
            now=asyncio.get_running_loop().time(),
            keep_alive_s=config.keep_alive_s,
            handshake_s=config.handshake_timeout_s,
            max_message_bytes=self._message_bytes_max,
            features=traits.features,
        )
        machine.version = traits.server_version
        # The handshake proves the caller first.
        machine.admits_all = False
        connection = ServerConnection(self._services, self._handlers, self.connections)
        return FairPump(machine, Handshake(connection), self._services.limits)

    async def close(self) -> None:
        """Stop accepting, answer all accepted entries so that no producer has to resend one, and hang up."""
        for server in self._servers:
            server.close()
        for connection in self.connections:
            connection.stop_reading()
        await self._services.logs.flush(FLUSH_S)
        for connection in list(self.connections):
            connection.hang_up()

    def drop(self) -> None:
        """Release the objects of connections that are not closed yet."""
        for connection in list(self.connections):
            connection.lost()


async def largest_message_bytes(store: MetadataStore, configured: int) -> int:
    """The largest `max_message_bytes` that brokers of this cluster ever had, this one included.

    Consumers close a connection at a frame that exceeds the size which the broker gives in CONNECTED. Entries
    that were stored under a larger setting must still reach them, so a broker never gives a smaller size.
    """
    while True:
        found = await store.get(MESSAGE_BYTES)
        known = 0 if found is None else int(found.value)
        if configured <= known:
            return known
        expected = ABSENT if found is None else found.version
        try:
            await store.put(MESSAGE_BYTES, b"%d" % configured, expected=expected)
        except VersionConflictError:
            continue
        return configured
