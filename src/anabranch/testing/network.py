"""In-memory connections between simulated processes, with everything a network may do to them.

A process's name is its host. A link joins two hosts and carries all their connections. Bytes of one
direction arrive in order, after a delay drawn from the seed, in pieces cut anywhere. What was sent before a
process dies still arrives, then the connection breaks. It must not know what the bytes mean. The module is
long because it writes asyncio's interfaces of transports and servers out; the two ends of a connection and
the network know each other too well to be parted.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from anabranch.testing.simloop import PROCESS, SimLoop, SimProcess, current_process

WRITE_HIGH_WATER_BYTES = 64 * 1024
LATENCY_S = (0.0001, 0.002)
PIECES = 0.1
CONNECT_TIMEOUT_S = 120.0
"""How long the caller's kernel keeps trying when nobody answers."""


class Mode(Enum):
    """What a link does with bytes."""

    OPEN = "open"
    HELD = "held"
    """Bytes wait and arrive after the link is opened again: a short partition."""
    BLACK_HOLE = "black hole"
    """Bytes are lost and nobody is told; a connection that lost some is reset at its next use."""


@dataclass(slots=True)
class SimLink:
    """How two hosts reach each other; applies to both directions."""

    rng: random.Random
    latency_s: tuple[float, float] = LATENCY_S
    pieces: float = PIECES
    """Chance that a chunk arrives in two pieces."""
    bytes_per_s: float | None = None
    mode: Mode = Mode.OPEN
    ends: dict[SimTransport, None] = field(default_factory=dict)
    """Both ends of every open connection, in the order of their making."""

    def delay_s(self, size: int = 0) -> float:
        delay = self.rng.uniform(*self.latency_s)
        return delay if self.bytes_per_s is None else delay + size / self.bytes_per_s


class Tap(Protocol):
    """Somebody who looks at every connection and changes nothing; `end` is the side it happens at."""

    def sending(self, end: SimTransport, data: bytes) -> None:
        """The process of this end has written bytes, whatever becomes of them."""
        ...

    def receiving(self, end: SimTransport, data: bytes) -> None:
        """The process of this end is about to be given bytes."""
        ...

    def received(self, end: SimTransport) -> None:
        """It has done what it does about them at once."""
        ...

    def ended(self, end: SimTransport) -> None:
        """The connection is over at this end."""
        ...


class SimSocket:
    """As much of a socket as callers look at: its address."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimServer(asyncio.AbstractServer):
    """A listening address; it goes away with its process."""

    def __init__(
        self, network: SimNetwork, factory: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> None:
        self._network = network
        self.factory = factory
        self.address = address
        self.process = current_process()
        self.context = contextvars.copy_context()
        self.sockets = (SimSocket(address),)
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self._network.forget(self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return not self.closed

    async def start_serving(self) -> None:
        return None

    async def serve_forever(self) -> None:
        await self._network.loop.create_future()

    async def wait_closed(self) -> None:
        return None


@dataclass(slots=True)
class _End:
    """In place of bytes: the peer has closed (None) or reset its end."""

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
        """Whether this is the end of the one who listened."""
        self.peer: SimTransport
        self.local = self.remote = ("", 0)
        link.ends[self] = None

    # What the protocol above calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

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

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self.peer._inbox_bytes

    def can_write_eof(self) -> bool:
        return False

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

    # What the network does.

    def arrive(self, item: bytes | _End) -> None:
        """Take an item on its way to this end."""
        if self._poisoned or self._closing:
            return
        if self._link.mode is Mode.BLACK_HOLE:
            self.poison()
            return
        size = 0 if isinstance(item, _End) else len(item)
        # Times may tie but never go back, so a direction keeps its order.
        self._last_arrival = max(self._last_arrival, self._loop.time() + self._link.delay_s(size))
        self._inbox.append((self._last_arrival, item))
        self._inbox_bytes += size
        self._schedule()

    def poison(self) -> None:
        """Bytes of this connection are lost: it can never go on, but neither end knows."""
        self._poisoned = self.peer._poisoned = True
        self._inbox.clear()
        self._inbox_bytes = 0

    def drop_some(self) -> None:
        """Lose a random tail of what is on its way, as a reset may."""
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
        """The process of this end is gone; the peer hears of it after everything sent before."""
        self._forget()
        self.peer.arrive(_End(error))

    def vanish(self) -> None:
        """The machine of this end is gone; nobody tells the peer."""
        self._forget()
        self.peer._poisoned = True

    def reschedule(self) -> None:
        """The link opened again: what waited sets out now."""
        now = self._loop.time()
        waiting, self._inbox = self._inbox, deque()
        for _, item in waiting:
            self._last_arrival = max(self._last_arrival, now + self._link.delay_s())
            self._inbox.append((self._last_arrival, item))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._schedule()

    def accept(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Run in the server's process: give the new connection its protocol."""
        if self._closing:
            return
        self._protocol = factory()
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
            protocol = self.get_protocol()
            assert isinstance(protocol, asyncio.Protocol)
            tap = self._network.tap
            if tap is not None:
                tap.receiving(self, item)
            protocol.data_received(item)
            if tap is not None:
                tap.received(self)
        self._schedule()

    def drained(self) -> None:
        """The peer has taken bytes; let our protocol write again when few enough are on their way."""
        if self._writing_paused and self.peer._inbox_bytes <= self._low and not self._closing:
            self._writing_paused = False
            self._loop.call_soon(self.get_protocol().resume_writing, context=self._context)

    def _end(self, end: _End) -> None:
        protocol = self.get_protocol()
        if end.error is None:
            assert isinstance(protocol, asyncio.Protocol)
            if protocol.eof_received():
                return
            self.close()
        else:
            self._lose(end.error)

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


class SimNetwork:
    """All links and listening addresses of one simulation."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.servers: dict[tuple[str, int], list[SimServer]] = {}
        """Several processes may listen at one address if all of them agree."""
        self._links: dict[tuple[str, str], SimLink] = {}
        self._ports = 40_000
        self._watched: list[SimProcess] = []
        self.tap: Tap | None = None
        self.latency_s = LATENCY_S
        self.pieces = PIECES
        """How new links behave."""
        self.rng = loop.random("network")
        loop.network = self

    def link(self, a: str, b: str) -> SimLink:
        """The link between two hosts, made at first use."""
        key = (a, b) if a <= b else (b, a)
        if key not in self._links:
            rng = self.loop.random(f"link {key[0]} {key[1]}")
            self._links[key] = SimLink(rng, self.latency_s, self.pieces)
        return self._links[key]

    def links(self) -> tuple[SimLink, ...]:
        """Every link that was used so far."""
        return tuple(self._links.values())

    def set_mode(self, link: SimLink, mode: Mode) -> None:
        """Hold, swallow, or carry bytes from now on."""
        link.mode = mode
        if mode is Mode.OPEN:
            for end in list(link.ends):
                end.reschedule()

    def heal(self) -> None:
        """Open every link."""
        for link in self._links.values():
            self.set_mode(link, Mode.OPEN)

    def reset(self, link: SimLink) -> int:
        """Break every connection of a link; how many there were."""
        broken = 0
        for end in list(link.ends):
            if not end.is_closing() and not end.peer.is_closing():
                end.break_both()
                broken += 1
        return broken

    def cut(self, link: SimLink) -> bool:
        """Break one connection within its next write, somewhere in the first bytes; False if none is open."""
        ends = list(link.ends)
        if not ends:
            return False
        link.rng.choice(ends).cut_next(link.rng.randrange(1, 40))
        return True

    def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        reuse_port: bool = False,
        **_options: Any,
    ) -> SimServer:
        """What `loop.create_server` does here."""
        process = current_process()
        address = (host or (process.name if process else "test"), port or self._next_port())
        if address in self.servers and not reuse_port:
            raise OSError(98, f"address {address} is in use")
        server = SimServer(self, factory, address)
        self.servers.setdefault(address, []).append(server)
        self._watch(process)
        return server

    def forget(self, server: SimServer) -> None:
        """Nobody listens there any more, or one process less."""
        listening = self.servers.get(server.address, [])
        if server in listening:
            listening.remove(server)
        if not listening:
            self.servers.pop(server.address, None)

    async def connect(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **_options: Any,
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """What `loop.create_connection` does here."""
        assert host is not None
        assert port is not None
        process = current_process()
        name = process.name if process else "test"
        link = self._link_to(name, host, port)
        await asyncio.sleep(link.delay_s())
        deadline = self.loop.time() + CONNECT_TIMEOUT_S
        while link.mode is not Mode.OPEN:
            if self.loop.time() > deadline:
                raise TimeoutError(f"no answer from {host}:{port}")
            await asyncio.sleep(0.2)
        server = next((s for s in self.servers.get((host, port), ()) if self._link_of(name, s) is link), None)
        if server is None:
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        ours = SimTransport(self, link, contextvars.copy_context())
        theirs = SimTransport(self, link, server.context.copy())
        ours.peer, theirs.peer = theirs, ours
        theirs.accepted = True
        ours.local = theirs.remote = (name, self._next_port())
        ours.remote = theirs.local = server.address
        self._watch(process)
        self.loop.call_soon(theirs.accept, server.factory, context=theirs._context)
        await asyncio.sleep(link.delay_s())
        protocol = factory()
        ours.set_protocol(protocol)
        protocol.connection_made(ours)
        ours._schedule()
        return ours, protocol

    def _link_to(self, name: str, host: str, port: int) -> SimLink:
        """The way to one of those who listen there."""
        listening = self.servers.get((host, port), ())
        return self._link_of(name, self.rng.choice(listening)) if listening else self.link(name, host)

    def _link_of(self, name: str, server: SimServer) -> SimLink:
        return self.link(name, server.address[0] if server.process is None else server.process.name)

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

    def _watch(self, process: SimProcess | None) -> None:
        if process is not None and process not in self._watched:
            self._watched.append(process)
            process.on_death.append(lambda: self._process_died(process))

    def _process_died(self, process: SimProcess) -> None:
        self._watched.remove(process)
        for server in [s for listening in self.servers.values() for s in listening]:
            if server.process is process:
                self.forget(server)
        for end in self._ends_of(process):
            if process.machine_lost:
                end.vanish()
            else:
                # The kernel closes the sockets of a killed process: with a reset if it had unread bytes.
                end.die(ConnectionResetError("reset by peer") if self.rng.random() < 0.5 else None)

    def _ends_of(self, process: SimProcess) -> Iterator[SimTransport]:
        for link in self._links.values():
            yield from [end for end in link.ends if end.process is process]
