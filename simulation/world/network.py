"""In-memory connections between simulated processes, with all faults of a network.

The name of a process is its host. A link joins two hosts and carries all their connections. Must not know
what the bytes mean.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from simulation.world.loop import SimLoop
from simulation.world.process import PROCESS, SimProcess
from simulation.world.transport import LATENCY_S, PIECES, Mode, SimLink, SimTransport, Tap

CONNECT_TIMEOUT_S = 120.0
"""How long the kernel of the caller retries a connection without an answer."""


class SimServer(asyncio.AbstractServer):
    """A listening address; it ends with its process."""

    def __init__(
        self, network: SimNetwork, factory: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> None:
        self._network = network
        self.factory = factory
        self.address = address
        self.process = PROCESS.get()
        self.context = contextvars.copy_context()
        self.sockets = (SimpleNamespace(getsockname=lambda: address),)

    def close(self) -> None:
        self._network.forget(self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self in self._network.servers.get(self.address, ())

    async def start_serving(self) -> None:
        return None

    async def serve_forever(self) -> None:
        await self._network.loop.create_future()

    async def wait_closed(self) -> None:
        return None


class SimNetwork:
    """All links and listening addresses of one simulation."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.servers: dict[tuple[str, int], list[SimServer]] = {}
        """Several processes may listen at one address with `reuse_port`."""
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
        """Return the link between two hosts, made at first use."""
        key = (a, b) if a <= b else (b, a)
        if key not in self._links:
            rng = self.loop.random(f"link {key[0]} {key[1]}")
            self._links[key] = SimLink(rng, self.latency_s, self.pieces)
        return self._links[key]

    def links(self) -> tuple[SimLink, ...]:
        """Return every link that was used so far."""
        return tuple(self._links.values())

    def set_mode(self, link: SimLink, mode: Mode) -> None:
        """Hold, lose, or carry bytes from now on."""
        link.mode = mode
        if mode is Mode.OPEN:
            for end in list(link.ends):
                end.reschedule()

    def heal(self) -> None:
        """Open every link."""
        for link in self._links.values():
            self.set_mode(link, Mode.OPEN)

    def reset(self, link: SimLink) -> int:
        """Break every connection of a link; return their number."""
        broken = 0
        for end in list(link.ends):
            if not end.is_closing() and not end.peer.is_closing():
                end.break_both()
                broken += 1
        return broken

    def cut(self, link: SimLink) -> None:
        """Break one open connection within the first bytes of its next write."""
        if link.ends:
            link.rng.choice(list(link.ends)).cut_next(link.rng.randrange(1, 40))

    def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        reuse_port: bool = False,
        **_options: Any,
    ) -> SimServer:
        """Implement `loop.create_server`."""
        process = PROCESS.get()
        address = (host or (process.name if process else "test"), port or self._next_port())
        if address in self.servers and not reuse_port:
            raise OSError(98, f"address {address} is in use")
        server = SimServer(self, factory, address)
        self.servers.setdefault(address, []).append(server)
        self._watch(process)
        return server

    def forget(self, server: SimServer) -> None:
        """Remove a server from its address."""
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
        """Implement `loop.create_connection`."""
        assert host is not None
        assert port is not None
        process = PROCESS.get()
        name = process.name if process else "test"
        listening = self.servers.get((host, port))
        link = self._link_of(name, self.rng.choice(listening)) if listening else self.link(name, host)
        await asyncio.sleep(link.delay_s())
        deadline = self.loop.time() + CONNECT_TIMEOUT_S
        while link.mode is not Mode.OPEN:
            if self.loop.time() > deadline:
                raise TimeoutError(f"no answer from {host}:{port}")
            await asyncio.sleep(0.2)
        server = next((s for s in self.servers.get((host, port), ()) if self._link_of(name, s) is link), None)
        if server is None:
            raise ConnectionRefusedError(111, f"no process listens on {host}:{port}")
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
        ends = [end for link in self._links.values() for end in link.ends if end.process is process]
        for end in ends:
            if process.machine_lost:
                end.vanish()
            else:
                # The kernel closes the sockets of a killed process, with a reset if bytes were unread.
                end.die(ConnectionResetError("reset by peer") if self.rng.random() < 0.5 else None)
