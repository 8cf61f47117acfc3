"""Simulated links: order, latency, and all the ways they fail."""

from __future__ import annotations

import asyncio

import pytest

from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork
from simulation.world.process import SimProcess
from simulation.world.transport import Mode, SimLink, SimTransport


class ProtocolRecorder(asyncio.Protocol):
    """Keeps the bytes that it received."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.chunks = 0
        self.lost = asyncio.get_running_loop().create_future()
        self.paused = False
        self.transport: SimTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.chunks += 1

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class LinkedPair:
    """A server process and a client process with one connection between them."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.server = SimProcess(loop, "server")
        self.client = SimProcess(loop, "client")
        self.accepted: list[ProtocolRecorder] = []

    def accept(self) -> ProtocolRecorder:
        self.accepted.append(ProtocolRecorder())
        return self.accepted[-1]

    async def listen(self) -> None:
        await self.server.spawn(self._listen())

    async def _listen(self) -> None:
        await asyncio.get_running_loop().create_server(self.accept, "server", 6650)

    async def dial(self) -> ProtocolRecorder:
        _, protocol = await self.client.spawn(self._dial())
        return protocol

    async def _dial(self) -> tuple[asyncio.Transport, ProtocolRecorder]:
        return await asyncio.get_running_loop().create_connection(ProtocolRecorder, "server", 6650)

    async def pair(self) -> tuple[ProtocolRecorder, ProtocolRecorder]:
        await self.listen()
        ours = await self.dial()
        await asyncio.sleep(0.1)
        return ours, self.accepted[-1]

    @property
    def link(self) -> SimLink:
        return self.network.link("client", "server")


@pytest.fixture
def ends(loop: SimLoop) -> LinkedPair:
    return LinkedPair(loop)


async def test_bytes_arrive_in_order_and_in_pieces(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ends.link.pieces = 0.5
    data = bytes(range(256)) * 40
    for start in range(0, len(data), 100):
        ours.transport.write(memoryview(data)[start : start + 100])
    await asyncio.sleep(1)
    assert theirs.received == data
    assert theirs.chunks > len(data) / 100


async def test_bytes_take_their_time(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ends.link.latency_s = (0.5, 0.6)
    ours.transport.write(b"hello")
    await asyncio.sleep(0.49)
    assert not theirs.received
    await asyncio.sleep(0.2)
    assert theirs.received == b"hello"


async def test_an_address_without_a_server_refuses_connections(ends: LinkedPair) -> None:
    with pytest.raises(ConnectionRefusedError):
        await ends.dial()


async def test_a_port_is_taken_once(ends: LinkedPair) -> None:
    await ends.listen()
    with pytest.raises(OSError, match="in use"):
        await ends.listen()


async def test_servers_that_share_an_address_take_turns_without_the_dead(loop: SimLoop) -> None:
    network = SimNetwork(loop)
    brokers = [SimProcess(loop, name) for name in ("one", "two")]
    accepted: list[str] = []

    async def listen(name: str) -> None:
        def accept() -> ProtocolRecorder:
            accepted.append(name)
            return ProtocolRecorder()

        await loop.create_server(accept, "service", 6650, reuse_port=True)

    for broker in brokers:
        await broker.spawn(listen(broker.name))
    for _ in range(20):
        await loop.create_connection(ProtocolRecorder, "service", 6650)
        await asyncio.sleep(0.1)
    assert set(accepted) == {"one", "two"}
    brokers[0].kill()
    accepted.clear()
    for _ in range(5):
        await loop.create_connection(ProtocolRecorder, "service", 6650)
        await asyncio.sleep(0.1)
    assert accepted == ["two"] * 5
    assert network.link("test", "two").ends, "a link leads to the process, not to the address"


async def test_port_zero_picks_a_free_one(loop: SimLoop) -> None:
    SimNetwork(loop)
    first = await loop.create_server(asyncio.Protocol, "server", 0)
    second = await loop.create_server(asyncio.Protocol, "server", 0)
    assert first.sockets[0].getsockname() != second.sockets[0].getsockname()


async def test_close_delivers_what_was_written_first(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ours.transport.write(b"last words")
    ours.transport.close()
    assert await ours.lost is None
    assert await theirs.lost is None
    assert theirs.received == b"last words"


async def test_abort_resets_the_peer(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ours.transport.abort()
    assert isinstance(await theirs.lost, ConnectionResetError)


async def test_a_held_link_delivers_after_it_opens(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ends.network.set_mode(ends.link, Mode.HELD)
    ours.transport.write(b"one")
    ours.transport.write(b"two")
    await asyncio.sleep(60)
    assert not theirs.received
    ends.network.heal()
    await asyncio.sleep(1)
    assert theirs.received == b"onetwo"


async def test_a_black_hole_is_silent_and_resets_after_it_heals(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ends.network.set_mode(ends.link, Mode.BLACK_HOLE)
    ours.transport.write(b"lost")
    await asyncio.sleep(60)
    assert not theirs.received
    assert not ours.lost.done()
    ends.network.heal()
    ours.transport.write(b"more")
    assert isinstance(await ours.lost, ConnectionResetError)
    assert not theirs.received


async def test_connecting_through_a_black_hole_waits_for_it_to_heal(ends: LinkedPair) -> None:
    await ends.listen()
    ends.network.set_mode(ends.link, Mode.BLACK_HOLE)
    dialing = asyncio.ensure_future(ends.dial())
    await asyncio.sleep(10)
    assert not dialing.done()
    ends.network.heal()
    await dialing


async def test_reset_breaks_both_ends(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    assert ends.network.reset(ends.link) == 1
    assert isinstance(await ours.lost, ConnectionResetError)
    assert isinstance(await theirs.lost, ConnectionResetError)


async def test_a_cut_delivers_the_front_of_a_write_only(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ends.link.pieces = 0
    ours.transport.cut_next(3)
    ours.transport.write(b"abcdef")
    assert isinstance(await theirs.lost, ConnectionResetError)
    assert theirs.received == b"abc"


async def test_bytes_sent_before_a_kill_still_arrive(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    theirs.transport.write(b"receipt")
    ends.server.kill()
    await ours.lost
    assert ours.received == b"receipt"
    with pytest.raises(ConnectionRefusedError):
        await ends.dial()


async def test_a_process_that_died_can_be_started_again_on_its_port(loop: SimLoop, ends: LinkedPair) -> None:
    await ends.pair()
    ends.server.kill()
    ends.server = SimProcess(loop, "server")
    ours, theirs = await ends.pair()
    ours.transport.write(b"again")
    await asyncio.sleep(1)
    assert theirs.received == b"again"


async def test_a_lost_machine_is_silent(ends: LinkedPair) -> None:
    ours, _ = await ends.pair()
    ends.server.kill(machine=True)
    await asyncio.sleep(60)
    assert not ours.lost.done()


async def test_a_reader_that_pauses_slows_the_writer(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    theirs.transport.pause_reading()
    for _ in range(20):
        ours.transport.write(bytes(8192))
    await asyncio.sleep(1)
    assert ours.paused
    assert not theirs.received
    theirs.transport.resume_reading()
    await asyncio.sleep(1)
    assert not ours.paused
    assert len(theirs.received) == 20 * 8192


async def test_the_sockets_of_a_paused_process_fill_and_are_read_later(ends: LinkedPair) -> None:
    ours, theirs = await ends.pair()
    ends.server.pause()
    ours.transport.write(b"while you slept")
    await asyncio.sleep(60)
    assert not theirs.received
    ends.server.resume()
    await asyncio.sleep(0.01)
    assert theirs.received == b"while you slept"
