"""One connection: a protocol machine on an asyncio transport.

The pump moves bytes, coalesces writes, passes back-pressure on in both directions and keeps the connection
alive. Its handler knows what the commands mean. The pump uses only connections, timers and `call_soon` of the
loop, so it runs on asyncio, uvloop and the simulated loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from anabranch.errors import AnabranchError, NotConnectedError
from anabranch.protocol.commands import Command
from anabranch.protocol.connection import ClientMachine, ServerMachine
from anabranch.transport.addresses import address_of

Buffer = bytes | bytearray | memoryview

QUEUED_BYTES_MAX: Final = 256 * 2**10
"""Written bytes that may wait for the end of the loop's turn; more go to the transport at once."""

LARGE_BUFFER_BYTES: Final = 8 * 2**10
"""Mean buffer size from which joining buffers costs more than writing them one by one."""

UNSENT_BYTES_MAX: Final = 2**20
"""Unsent bytes of the transport above which the pump is not writable."""

LINGER_S: Final = 5.0
"""How long a closing connection may take to send the bytes written before."""


class PumpHandler(Protocol):
    """The owner of a pump; all calls come from the event loop."""

    def connected(self, pump: Pump) -> None:
        """The peer has sent CONNECT or CONNECTED; called once, before the first command."""

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        """The commands of one read, in order; the first command of all is CONNECT or CONNECTED."""

    def closed(self, pump: Pump, error: Exception | None) -> None:
        """The connection is closed; called once, also when the handshake was never finished."""


class Pump(asyncio.BaseProtocol):
    """Owns one machine and one transport; a client's pump sends CONNECT by itself."""

    def __init__(self, machine: ClientMachine | ServerMachine, handler: PumpHandler) -> None:
        self.machine = machine
        self.on_writable: Callable[[], None] | None = None
        """Called whenever the pump becomes writable again."""
        self.peer = ""
        """Address of the peer, for logs and errors."""
        self.is_tls = False
        self.closed = False
        self.handled = 0
        """Commands in the last read; the handler adds to it for costly ones."""
        self.handler = handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._flush_scheduled = False
        self._hurried = False
        self._established = False
        self._closing = False
        self._error: Exception | None = None
        self._blocked = False
        self._written_bytes = 0
        self._sent_bytes = 0
        self._reading_paused = False
        self._paused_by_owner = False
        self._waits_for_turn = False
        self._drains: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def writable(self) -> bool:
        """False while too many bytes are unsent, and after the connection is closed."""
        return not (self._blocked or self._closing)

    def write(self, buffer: Buffer) -> None:
        """Queue bytes for the end of the loop's turn; drop them if the connection is closing or closed."""
        if self._closing:
            return
        self._queue.append(buffer)
        self._queued(len(buffer))

    def write_many(self, buffers: Iterable[Buffer]) -> None:
        """As `write`, for several buffers that belong together."""
        if self._closing:
            return
        queue = self._queue
        before = len(queue)
        queue += buffers
        self._queued(sum(map(len, queue[before:])))

    def write_early(self, buffers: Iterable[Buffer]) -> None:
        """As `write_many`, but the first early bytes of a turn of the loop leave at once."""
        self.write_many(buffers)
        if not self._hurried and self._flush_scheduled:
            self._hurried = True
            self.flush()

    def _queued(self, size: int) -> None:
        self._queued_bytes += size
        if self._queued_bytes >= QUEUED_BYTES_MAX:
            self.flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_turn)

    async def drain(self) -> None:
        """Return once the pump is writable; raises NotConnectedError when the connection is closed."""
        while self._blocked and not self._closing:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drains.append(waiter)
            await waiter
        if self._closing:
            raise NotConnectedError(f"the connection to {self.peer} is closed")

    def pause_reading(self) -> None:
        """Read no more from the peer until `resume_reading`; the handler still gets commands already read."""
        self._paused_by_owner = True
        self._apply_reading()

    def resume_reading(self) -> None:
        self._paused_by_owner = False
        self._apply_reading()

    def wait_for_turn(self, waits: bool) -> None:
        """Read no more from the peer while `waits`; independent of `pause_reading`."""
        self._waits_for_turn = waits
        self._apply_reading()

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str) -> Any:
        """Return what the transport knows: `peercert`, `ssl_object`, `peername`; None before it exists."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def close(self, error: Exception | None = None) -> None:
        """Send the bytes written before, then close; the handler gets `error` as the reason."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        self._error = self._error or error
        if self._transport is not None:
            self._transport.close()
            if not self.closed:
                self._reschedule(LINGER_S, self.abort)
        self._wake_drains()

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; unsent bytes are lost."""
        self._closing = True
        self._error = self._error or error
        self._queue.clear()
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()
        self._wake_drains()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.peer = address_of(transport.get_extra_info("peername"))
        self.is_tls = transport.get_extra_info("ssl_object") is not None
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
            self.handled = len(commands) + len(output)
            # A peer that pings but never reads gets no answers, because they would pile up.
            if output and not self._blocked:
                self.write_many(output)
            if commands:
                if not self._established and machine.has_met_peer:
                    self._established = True
                    self.handler.connected(self)
                self.handler.commands(self, commands)
        finally:
            self._flush_scheduled = scheduled
            self.flush()

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
        self._stop_timer()
        self._wake_drains()
        # An incomplete frame may be large, and handlers refer to their pump. Drop both now, so that their
        # memory does not wait for the garbage collector.
        self.machine.forget_input()
        self.on_writable = None
        handler = self.handler
        del self.handler
        handler.closed(self, self._error or exc)

    def _flush_scheduled_turn(self) -> None:
        self._flush_scheduled = self._hurried = False
        self.flush()

    def flush(self) -> None:
        """Send queued bytes now instead of at the end of the loop's turn."""
        queue = self._queue
        if not queue or self._transport is None:
            return
        size = self._queued_bytes
        self._queue = []
        self._queued_bytes = 0
        self._written_bytes += size
        if len(queue) == 1:
            self._transport.write(queue[0])
        elif size > LARGE_BUFFER_BYTES * len(queue):
            # This is one system call as well, and a loop that supports gathered writes copies nothing.
            self._transport.writelines(queue)
        else:
            self._transport.write(b"".join(queue))

    def _apply_reading(self) -> None:
        """Read unless reading is paused, or this is a broker whose client does not read its answers.

        Only the broker stops reading from a slow peer: if both ends did, two full buffers would wait for each
        other.
        """
        paused = self._paused_by_owner or self._waits_for_turn
        paused = paused or (self._blocked and isinstance(self.machine, ServerMachine))
        if paused == self._reading_paused or self._transport is None or self._closing:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _tick(self) -> None:
        now = self._loop.time()
        unread = self._paused_by_owner or self._waits_for_turn
        if not self.machine.tick(now, reading=not unread and not self._peer_reads()):
            self.abort(NotConnectedError(f"{self.peer} has not answered for too long"))
            return
        output = self.machine.take_output()
        if output:
            self.write_many(output)
        self._reschedule(max(self.machine.tick_at - now, 0.001), self._tick)

    def _peer_reads(self) -> bool:
        """Return whether a slow peer, from which the pump does not read, took bytes since the last tick."""
        if self._transport is None:
            return False
        before, self._sent_bytes = self._sent_bytes, self._written_bytes - self.unsent_bytes
        return self._reading_paused and self._sent_bytes > before

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _reschedule(self, delay_s: float, action: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(max(delay_s, 0.0), action)

    def _wake_drains(self) -> None:
        waiters, self._drains = self._drains, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
