"""One end of a simulated connection, which asyncio calls a transport, and the link that carries it.

Bytes of one direction arrive in order, after a delay drawn from the seed, in pieces cut anywhere. Bytes sent
before a process dies still arrive, then the connection breaks. Must not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, cast

from simulation.world.process import PROCESS, SimProcess

if TYPE_CHECKING:
    from simulation.world.network import SimNetwork

WRITE_HIGH_WATER_BYTES = 64 * 1024
LATENCY_S = (0.0001, 0.002)
PIECES = 0.1


class Mode(Enum):
    """How a link treats bytes."""

    OPEN = "open"
    HELD = "held"
    """Bytes wait and arrive after the link opens again: a short partition."""
    BLACK_HOLE = "black hole"
    """Bytes are lost without an error; a connection that lost bytes is reset at its next use."""


@dataclass(slots=True)
class SimLink:
    """The latency and mode between two hosts, in both directions."""

    rng: random.Random
    latency_s: tuple[float, float] = LATENCY_S
    pieces: float = PIECES
    """Probability that a chunk arrives in two pieces."""
    mode: Mode = Mode.OPEN
    ends: dict[SimTransport, None] = field(default_factory=dict)
    """Both ends of every open connection, oldest first."""

    def delay_s(self) -> float:
        return self.rng.uniform(*self.latency_s)


class Tap(Protocol):
    """Observes every connection and changes nothing; `end` is the side of the event."""

    def sending(self, end: SimTransport, data: bytes) -> None:
        """The process of this end has written bytes; they may still be lost."""

    def receiving(self, end: SimTransport, data: bytes) -> None:
        """The process of this end is about to receive bytes."""

    def received(self, end: SimTransport) -> None:
        """The process of this end has handled the bytes."""

    def ended(self, end: SimTransport) -> None:
        """The connection has ended at this end."""


@dataclass(slots=True)
class _End:
    """Follows the last bytes: the peer has closed (None) or reset its end."""

    error: Exception | None


class SimTransport(asyncio.Transport):
    """One end of a connection; its callbacks run inside its own process."""

    def __init__(self, network: SimNetwork, link: SimLink, context: contextvars.Context) -> None:
        super().__init__()
        self._network = network
        self._loop = network.loop
        self._link = link
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[tuple[float, bytes | _End]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_arrival = 0.0
        self._inbox_bytes = 0
        self._reading = True
        self._closing = False
        self._poisoned = False
        self._cut_at: int | None = None
        self._writing_paused = False
        self._high, self._low = WRITE_HIGH_WATER_BYTES, WRITE_HIGH_WATER_BYTES // 4
        self.process: SimProcess | None = context.get(PROCESS)
        self.accepted = False
        """Whether this is the end of the listening process."""
        self.peer: SimTransport
        self.local = self.remote = ("", 0)
        link.ends[self] = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self.peer._inbox_bytes

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not len(data):
            return
        if self._network.tap is not None:
            self._network.tap.sending(self, bytes(data))
        if self._poisoned and self._link.mode is Mode.OPEN:
            self._lose(ConnectionResetError("bytes were lost on the way"))
            return
        chunk = bytes(data)
        if self._cut_at is not None:
            self.peer.arrive(chunk[: self._cut_at])
            self.break_both()
            return
        if self._link.rng.random() < self._link.pieces and len(chunk) > 1:
            cut = self._link.rng.randrange(1, len(chunk))
            self.peer.arrive(chunk[:cut])
            chunk = chunk[cut:]
        self.peer.arrive(chunk)
        if self.peer._inbox_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing:
            self.peer.arrive(_End(None))
            self._lose(None)

    def abort(self) -> None:
        if not self._closing:
            self.peer.drop_some()
            self.peer.arrive(_End(ConnectionResetError("reset by peer")))
            self._lose(None)

    def arrive(self, item: bytes | _End) -> None:
        """Take in an item that is sent to this end."""
        if self._poisoned or self._closing:
            return
        if self._link.mode is Mode.BLACK_HOLE:
            self.poison()
            return
        # Arrival times never fall, so a direction keeps its order.
        self._last_arrival = max(self._last_arrival, self._loop.time() + self._link.delay_s())
        self._inbox.append((self._last_arrival, item))
        self._inbox_bytes += 0 if isinstance(item, _End) else len(item)
        self._schedule()

    def poison(self) -> None:
        """Lose the bytes of this connection: it can never go on, but neither end notices."""
        self._poisoned = self.peer._poisoned = True
        self._inbox.clear()
        self._inbox_bytes = 0

    def drop_some(self) -> None:
        """Lose a random tail of the bytes under way, as a reset may."""
        keep = self._link.rng.randrange(len(self._inbox) + 1)
        while len(self._inbox) > keep:
            _, item = self._inbox.pop()
            self._inbox_bytes -= 0 if isinstance(item, _End) else len(item)

    def cut_next(self, at: int) -> None:
        """Send only the first `at` bytes of the next write, then break the connection."""
        self._cut_at = at

    def break_both(self) -> None:
        """Reset the connection as seen from both ends."""
        self.peer.arrive(_End(ConnectionResetError("connection reset")))
        self._lose(ConnectionResetError("connection reset"))

    def die(self, error: Exception | None) -> None:
        """End the connection because this process died; the peer first receives all bytes sent before."""
        self._forget()
        self.peer.arrive(_End(error))

    def vanish(self) -> None:
        """End the connection because this machine died; the peer does not notice."""
        self._forget()
        self.peer._poisoned = True

    def reschedule(self) -> None:
        """Deliver the waiting items, because the link opened again."""
        now = self._loop.time()
        waiting, self._inbox = self._inbox, deque()
        for _, item in waiting:
            self._last_arrival = max(self._last_arrival, now + self._link.delay_s())
            self._inbox.append((self._last_arrival, item))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._schedule()

    def accept(self, factory: Callable[[], asyncio.BaseProtocol | None]) -> None:
        """Create the protocol of a new connection, in the server's process; without one hang up."""
        if self._closing:
            return
        self._protocol = factory()
        if self._protocol is None:
            self.abort()
            return
        self._protocol.connection_made(self)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._inbox and self._reading and self._protocol is not None:
            self._timer = self._loop.call_at(self._inbox[0][0], self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._inbox and self._reading and not self._closing:
            if self._link.mode is Mode.HELD:
                return
            if self._link.mode is Mode.BLACK_HOLE:
                self.poison()
                return
            arrival, item = self._inbox[0]
            if arrival > now:
                break
            self._inbox.popleft()
            if isinstance(item, _End):
                self._end(item)
                return
            self._loop.note(f"net {self.remote[0]}>{self.local[0]} {len(item)} {zlib.crc32(item):08x}")
            self._inbox_bytes -= len(item)
            self.peer.drained()
            protocol = cast(asyncio.Protocol, self.get_protocol())
            tap = self._network.tap
            if tap is not None:
                tap.receiving(self, item)
            protocol.data_received(item)
            if tap is not None:
                tap.received(self)
        self._schedule()

    def drained(self) -> None:
        """Resume writing when the peer has taken enough bytes."""
        if self._writing_paused and self.peer._inbox_bytes <= self._low and not self._closing:
            self._writing_paused = False
            self._loop.call_soon(self.get_protocol().resume_writing, context=self._context)

    def _end(self, end: _End) -> None:
        protocol = cast(asyncio.Protocol, self.get_protocol())
        if end.error is not None:
            self._lose(end.error)
        elif not protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._forget()
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def _forget(self) -> None:
        self._closing = True
        self._inbox.clear()
        self._inbox_bytes = 0
        self._link.ends.pop(self, None)
        if self._network.tap is not None:
            self._network.tap.ended(self)
