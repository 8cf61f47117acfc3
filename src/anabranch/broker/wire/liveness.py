"""Asks the peer of a connection for a sign of life, before another client gets what the peer holds."""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.protocol.commands import encode
from anabranch.protocol.connection import ServerMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import Pump

PROBE_S: Final = 5.0
"""How long a peer may take to answer, when another client wants the name it holds."""

_PING: Final = encode(pb.CommandPing())


class SignOfLife:
    """The probes of one connection; callers that ask at the same time share one PING."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: asyncio.Future[None] | None = None

    async def comes(self, pump: Pump) -> bool:
        """Ask the peer for a sign of life; without one the connection is aborted."""
        machine = pump.machine
        assert isinstance(machine, ServerMachine)
        if self._heard is None or self._heard.done():
            self._heard = asyncio.get_running_loop().create_future()
            machine.heard = self.stop_waiting
            pump.write(_PING)
        try:
            async with asyncio.timeout(PROBE_S):
                # Shielded: a caller that gives up must not cancel the wait of the others.
                await asyncio.shield(self._heard)
        except TimeoutError:
            pump.abort()
            return False
        return True

    def stop_waiting(self) -> None:
        """End the wait of all callers: the peer sent bytes, or the connection is closed."""
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)
