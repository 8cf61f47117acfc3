"""Asks the peer of a connection for a sign of life, before another client gets what the peer holds."""

from __future__ import annotations

import asyncio

from anabranch.protocol.commands import Command, encode
from anabranch.protocol.connection import ServerMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import Pump

PROBE_S = 5.0
"""How long a peer may take to answer, when another client wants the name it holds."""

_PING = encode(pb.CommandPing())


class ListeningMachine(ServerMachine):
    """A server machine that resolves `heard` when its peer sends anything, and admits proven callers only."""

    admits_all = False
    heard: asyncio.Future[None] | None = None

    def receive(self, data: bytes, now: float) -> list[Command]:
        self.stop_listening()
        return super().receive(data, now)

    def stop_listening(self) -> None:
        """End the wait of `answers`: the peer sent bytes, or the connection is closed."""
        if self.heard is not None and not self.heard.done():
            self.heard.set_result(None)


async def answers(pump: Pump) -> bool:
    """Ask the peer for a sign of life; without one the connection is aborted."""
    machine = pump.machine
    assert isinstance(machine, ListeningMachine)
    if machine.heard is None or machine.heard.done():
        machine.heard = asyncio.get_running_loop().create_future()
        pump.write(_PING)
    try:
        async with asyncio.timeout(PROBE_S):
            await asyncio.shield(machine.heard)
    except TimeoutError:
        pump.abort()
        return False
    return True
