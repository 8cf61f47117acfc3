"""Opens connections: `dial` connects to a broker, `listen` accepts clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from anabranch.aio import mark_retrieved
from anabranch.errors import AnabranchError, ConnectError, OperationTimeoutError
from anabranch.protocol.commands import Command
from anabranch.protocol.connection import ClientMachine
from anabranch.transport.pump import Pump, PumpHandler
from anabranch.transport.tls_errors import closed_early, explain

_HANDSHAKE_ERRORS = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)


class _HandshakeHandler:
    """Stands in for the owner's handler until the handshake has succeeded or failed."""

    def __init__(self, handler: PumpHandler, decided: asyncio.Future[None]) -> None:
        self._handler = handler
        self._decided = decided

    def connected(self, pump: Pump) -> None:
        if not self._decided.done():
            self._decided.set_result(None)
        pump.handler = self._handler
        self._handler.connected(pump)

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        self._handler.commands(pump, commands)

    def closed(self, pump: Pump, error: Exception | None) -> None:
        if not self._decided.done():
            failure = error if isinstance(error, AnabranchError) else closed_early(pump.peer, tls=pump.is_tls)
            self._decided.set_exception(failure)


async def dial(
    host: str,
    port: int,
    machine_factory: Callable[[], ClientMachine],
    handler: PumpHandler,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> Pump:
    """Connect and finish the handshake.

    Raise ConnectError, OperationTimeoutError, or the error that the broker answered, such as
    AuthenticationError. No connection is left open then. The handler is called only after the handshake has
    succeeded.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _connected(host, port, machine_factory, handler, tls)
    except TimeoutError:
        raise OperationTimeoutError(
            f"{host}:{port} did not finish the handshake within {timeout_s} s"
        ) from None
    except AnabranchError:
        raise
    except OSError as error:
        if tls is not None and isinstance(error, _HANDSHAKE_ERRORS):
            raise explain(error, f"{host}:{port}") from error
        raise ConnectError(f"cannot connect to {host}:{port}: {error}") from error


async def _connected(
    host: str,
    port: int,
    machine_factory: Callable[[], ClientMachine],
    handler: PumpHandler,
    tls: ssl.SSLContext | None,
) -> Pump:
    loop = asyncio.get_running_loop()
    decided: asyncio.Future[None] = loop.create_future()
    pump: Pump | None = None

    def make_pump() -> Pump:
        # uvloop closes a connection whose task was cancelled without telling the pump.
        nonlocal pump
        pump = Pump(machine_factory(), _HandshakeHandler(handler, decided))
        return pump

    try:
        _, connected = await loop.create_connection(make_pump, host, port, ssl=tls)
        await decided
        return connected
    except BaseException:
        # A task may be cancelled in the turn of the loop in which its handshake succeeds.
        decided.cancel()
        mark_retrieved(decided)
        if pump is not None:
            pump.abort()
        raise


async def listen(
    host: str, port: int, factory: Callable[[], Pump | None], *, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Accept connections; `factory` makes the pump of each."""
    make = cast(Callable[[], Pump], factory)
    return await asyncio.get_running_loop().create_server(make, host, port, ssl=tls)
