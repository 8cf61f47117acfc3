"""Connections in their TLS handshake count at the door, and end at once when the door drops them."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from anabranch.config.tls import TlsConfig
from anabranch.security.tls import server_context
from anabranch.server.listening import listen
from anabranch.transport.accepting import Acceptor, TlsHandshake
from anabranch.transport.door import Door
from anabranch.transport.tls import ClientTls
from anabranch.transport.turns import TURNS_AT_ONCE
from simulation.harness.certificates import Authority

HELLO = bytes.fromhex("1603010200010001fc0303")


class DoorVisitor(asyncio.Protocol):
    """A connection that only records its life."""

    def __init__(self, door: list[Door[DoorVisitor]]) -> None:
        self.events: list[str] = []
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self._door[0].leave(self)

    def abort(self, error: Exception | None = None) -> None:
        self.events.append("aborted")


class TlsPort:
    """A port with room for two connections and all the time in the world."""

    def __init__(self, authority: Authority) -> None:
        pair = authority.server()
        config = TlsConfig(tls_port=0, tls_certificate_file=pair.certificate, tls_key_file=pair.key)
        self.made: list[DoorVisitor] = []
        doors: list[Door[DoorVisitor]] = []
        self.door = Door("port", 2, lambda: self._make(doors))
        doors.append(self.door)
        self.client = ClientTls(authority.file).context()
        self._context = server_context(config)
        self.turn = 0
        self.begun: list[int] = []
        """The turn of the event loop in which each handshake began."""
        self._stack = ExitStack()

    def _make(self, doors: list[Door[DoorVisitor]]) -> DoorVisitor:
        self.made.append(DoorVisitor(doors))
        return self.made[-1]

    def open(self, timeout_s: float = 600.0) -> Acceptor[DoorVisitor]:
        listener = listen("127.0.0.1", 0, "--port")
        self.port = listener.getsockname()[1]
        return Acceptor(listener, self.door, TlsHandshake(self._begin, timeout_s))

    def _begin(self) -> ssl.SSLContext:
        self.begun.append(self.turn)
        return self._context

    def count_turns(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.count_turns)

    async def connect(self, first_bytes: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._stack.callback(writer.close)
        writer.write(first_bytes)
        return reader

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def port(tmp_path: Path) -> Iterator[TlsPort]:
    made = TlsPort(Authority(tmp_path))
    yield made
    made.close()


async def is_closed(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed a connection."""
    async with asyncio.timeout(60):
        try:
            await reader.read()
        except ConnectionResetError:
            return


async def counted(port: TlsPort, number: int) -> None:
    async with asyncio.timeout(60):
        while len(port.made) < number:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("first_bytes", [b"", HELLO])
async def test_a_silent_handshake_ends_when_the_port_is_full(port: TlsPort, first_bytes: bytes) -> None:
    acceptor = port.open()
    first = await port.connect(first_bytes)
    await counted(port, 1)
    for number in (2, 3):
        await port.connect(first_bytes)
        await counted(port, number)
    await is_closed(first)
    assert (port.made[0].events, len(port.door)) == (["aborted"], 2)
    acceptor.close()
    port.door.clear()


async def test_silent_clients_begin_no_handshake_and_others_take_turns(port: TlsPort) -> None:
    port.door.open_max = 100
    acceptor = port.open()
    silent = [await port.connect() for _ in range(10)]
    await counted(port, 10)
    assert port.begun == []
    port.count_turns()
    for _ in range(40):
        await port.connect(HELLO)
    async with asyncio.timeout(60):
        while len(port.begun) < 40:
            await asyncio.sleep(0.01)
    assert max(Counter(port.begun).values()) <= TURNS_AT_ONCE
    acceptor.close()
    port.door.clear()
    for reader in silent:
        await is_closed(reader)


async def test_a_garbage_handshake_is_forgotten(port: TlsPort) -> None:
    acceptor = port.open()
    await is_closed(await port.connect(b"GET / HTTP/1.1\r\n\r\n"))
    async with asyncio.timeout(60):
        while len(port.door):
            await asyncio.sleep(0.01)
    assert port.made[0].events == []
    acceptor.close()


async def test_a_handshake_ends_after_its_time(port: TlsPort) -> None:
    acceptor = port.open(timeout_s=0.3)
    for first_bytes in (b"", HELLO):
        await is_closed(await port.connect(first_bytes))
    async with asyncio.timeout(60):
        while len(port.door):
            await asyncio.sleep(0.01)
    acceptor.close()


async def test_a_whole_handshake_makes_the_connection(port: TlsPort) -> None:
    acceptor = port.open()
    _, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=port.client)
    assert isinstance(writer.get_extra_info("ssl_object"), ssl.SSLObject)
    await counted(port, 1)
    writer.close()
    async with asyncio.timeout(60):
        while len(port.door):
            await asyncio.sleep(0.01)
    assert port.made[0].events == ["made", "lost"]
    acceptor.close()
