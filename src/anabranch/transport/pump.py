"""One connection: a protocol machine on an asyncio transport.

The pump moves bytes, coalesces writes, passes back-pressure on in both directions and keeps the connection
alive. What the commands mean is the handler's affair. It uses nothing of the loop but connections, timers
and `call_soon`, so it runs on asyncio, uvloop and the simulated loop alike.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from anabranch.errors import AnabranchError, ConnectError, NotConnectedError, OperationTimeoutError
from anabranch.protocol.commands import Command
from anabranch.protocol.connection import ClientMachine, ServerMachine

Buffer = bytes | bytearray | memoryview

QUEUED_BYTES_MAX: Final = 256 * 2**10
"""Written bytes that wait for the end of the loop's turn; beyond, they go to the transport at once."""

LARGE_BUFFER_BYTES: Final = 8 * 2**10
"""Average size from which copying buffers together costs more than handing them over one by one."""

UNSENT_BYTES_MAX: Final = 2**20
"""Bytes the transport may hold for a slow peer before the pump stops being writable."""

LINGER_S: Final = 5.0
"""How long a closing connection may take to send what was written before."""


class Handler(Protocol):
    """Who owns a pump; all calls come from the event loop."""

    def connected(self, pump: Pump) -> None:
        """The handshake is done; called once, before any command is handed over."""
        ...

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        """What one read brought, in order; CONNECT or CONNECTED is the first of all."""
        ...

    def closed(self, pump: Pump, error: Exception | None) -> None:
        """The connection is gone; called once, also when the handshake was never done."""
        ...


class Pump(asyncio.Protocol):
    """Owns one machine and one transport; a client's pump sends CONNECT by itself."""

    def __init__(self, machine: ClientMachine | ServerMachine, handler: Handler) -> None:
        self.machine = machine
        self.on_writable: Callable[[], None] | None = None
        """Called whenever the pump becomes writable again."""
        self.peer = ""
        """Address of the peer, for people."""
        self.closed = False
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._flush_scheduled = False
        self._established = False
        self._closing = False
        self._error: Exception | None = None
        self._blocked = False
        self._given_bytes = 0
        self._taken_bytes = 0
        self._reading_paused = False
        self._deaf = False
        self._drains: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    # What owners call.

    @property
    def writable(self) -> bool:
        """False while the peer is slow to take what was written, and after the connection is gone."""
        return not (self._blocked or self._closing)

    def write(self, buffer: Buffer) -> None:
        """Queue bytes for the end of the loop's turn; dropped when the connection is closing or gone."""
        if self._closing:
            return
        self._queue.append(buffer)
        self._queued_bytes += len(buffer)
        if self._queued_bytes >= QUEUED_BYTES_MAX:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_turn)

    def write_many(self, buffers: Iterable[Buffer]) -> None:
        """As `write`, for several buffers that belong together."""
        if self._closing:
            return
        queue = self._queue
        before = len(queue)
        queue += buffers
        self._queued_bytes += sum(map(len, queue[before:]))
        if self._queued_bytes >= QUEUED_BYTES_MAX:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_turn)

    async def drain(self) -> None:
        """Return once the pump is writable; raises NotConnectedError when the connection is gone."""
        while self._blocked and not self._closing:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drains.append(waiter)
            await waiter
        if self._closing:
            raise NotConnectedError(f"the connection to {self.peer} is closed")

    def pause_reading(self) -> None:
        """Take no more from the peer until `resume_reading`; commands already read still come."""
        self._deaf = True
        self._apply_reading()

    def resume_reading(self) -> None:
        self._deaf = False
        self._apply_reading()

    def close(self, error: Exception | None = None) -> None:
        """Send what was written, then close; the handler hears `error` as the reason."""
        if self._closing:
            return
        self._flush()
        self._closing = True
        self._error = self._error or error
        if self._transport is not None:
            self._transport.close()
            if not self.closed:
                self._reschedule(LINGER_S, self.abort)
        self._wake_drains()

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; what was not sent is lost."""
        self._closing = True
        self._error = self._error or error
        self._queue.clear()
        if self._transport is not None:
            self._transport.abort()
        self._wake_drains()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.peer = _address(transport.get_extra_info("peername"))
        if self._closing:
            self._transport.abort()
            return
        if isinstance(self.machine, ClientMachine):
            self.write(self.machine.start())
        self._reschedule(self.machine.tick_at - self._loop.time(), self._tick)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        machine = self.machine
        try:
            commands = machine.receive(data, self._loop.time())
        except AnabranchError as error:
            self.close(error)
            return
        scheduled, self._flush_scheduled = self._flush_scheduled, True
        try:
            output = machine.take_output()
            if output:
                self.write_many(output)
            if commands:
                if not self._established and machine.established:
                    self._established = True
                    self._handler.connected(self)
                self._handler.commands(self, commands)
        finally:
            self._flush_scheduled = scheduled
            self._flush()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._blocked = True
        self._apply_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self._apply_reading()
        self._wake_drains()
        if self.on_writable is not None and not self._closing:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._closing = True
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_drains()
        self._handler.closed(self, self._error or exc)

    # Inside.

    def _flush_scheduled_turn(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        queue = self._queue
        if not queue or self._transport is None:
            return
        size = self._queued_bytes
        self._queue = []
        self._queued_bytes = 0
        self._given_bytes += size
        if len(queue) == 1:
            self._transport.write(queue[0])
        elif size > LARGE_BUFFER_BYTES * len(queue):
            # One system call as well, and where the loop knows how to gather, nothing is copied.
            self._transport.writelines(queue)
        else:
            self._transport.write(b"".join(queue))

    def _apply_reading(self) -> None:
        """Listen unless told not to, or unless a client does not take what the broker answers.

        Only the broker's end stops listening for the latter: if both ends did, two full buffers would wait
        for each other.
        """
        wanted = self._deaf or (self._blocked and isinstance(self.machine, ServerMachine))
        if wanted == self._reading_paused or self._transport is None or self._closing:
            return
        self._reading_paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _tick(self) -> None:
        now = self._loop.time()
        if not self.machine.tick(now, listening=not self._deaf and not self._moves()):
            self.abort(NotConnectedError(f"{self.peer} has not answered for too long"))
            return
        output = self.machine.take_output()
        if output:
            self.write_many(output)
        self._reschedule(max(self.machine.tick_at - now, 0.001), self._tick)

    def _moves(self) -> bool:
        """Whether a slow peer, to whom we do not listen meanwhile, took something since the last look."""
        if self._transport is None:
            return False
        before, self._taken_bytes = (
            self._taken_bytes,
            self._given_bytes - self._transport.get_write_buffer_size(),
        )
        return self._reading_paused and self._taken_bytes > before

    def _reschedule(self, delay_s: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(delay_s, 0.0), action)

    def _wake_drains(self) -> None:
        waiters, self._drains = self._drains, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Dialer:
    """Stands before the owner's handler until the handshake is decided."""

    def __init__(self, handler: Handler, decided: asyncio.Future[None]) -> None:
        self._handler = handler
        self._decided = decided

    def connected(self, pump: Pump) -> None:
        if not self._decided.done():
            self._decided.set_result(None)
        pump._handler = self._handler
        self._handler.connected(pump)

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        self._handler.commands(pump, commands)

    def closed(self, pump: Pump, error: Exception | None) -> None:
        if not self._decided.done():
            failure = (
                error
                if isinstance(error, AnabranchError)
                else ConnectError(f"{pump.peer} closed the connection during the handshake")
            )
            self._decided.set_exception(failure)


async def dial(
    host: str,
    port: int,
    machine_factory: Callable[[], ClientMachine],
    handler: Handler,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> Pump:
    """Connect and finish the handshake.

    Raises ConnectError, OperationTimeoutError, or what the broker answered, such as AuthenticationError.
    The handler hears of the connection only when the handshake succeeded.
    """
    loop = asyncio.get_running_loop()
    decided: asyncio.Future[None] = loop.create_future()
    options: dict[str, Any] = {} if tls is None else {"ssl": tls}
    pump: Pump | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, pump = await loop.create_connection(
                lambda: Pump(machine_factory(), _Dialer(handler, decided)), host, port, **options
            )
            await decided
            return pump
    except TimeoutError:
        raise OperationTimeoutError(f"{host}:{port} did not finish the handshake in {timeout_s} s") from None
    except AnabranchError:
        raise
    except OSError as error:
        raise ConnectError(f"cannot connect to {host}:{port}: {error}") from error
    finally:
        if not decided.done() or decided.cancelled() or decided.exception() is not None:
            decided.cancel()
            if pump is not None:
                pump.abort()


async def listen(
    host: str, port: int, factory: Callable[[], Pump], *, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Accept connections, one pump from `factory` each."""
    options: dict[str, Any] = {} if tls is None else {"ssl": tls}
    return await asyncio.get_running_loop().create_server(factory, host, port, **options)


def _address(peername: Any) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        return f"[{peername[0]}]:{peername[1]}" if ":" in str(peername[0]) else f"{peername[0]}:{peername[1]}"
    return str(peername or "unknown")
