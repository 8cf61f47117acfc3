from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.errors import (
    NotConnectedError,
    RemoteProtocolError,
)
from anabranch.protocol.commands import Command, Send, SendReceipt, encode
from anabranch.protocol.connection import ClientMachine, ServerMachine
from anabranch.protocol.hot_frames import encode_receipt, encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.dialing import dial, listen
from anabranch.transport.pump import LINGER_S, QUEUED_BYTES_MAX, UNSENT_BYTES_MAX, Pump
from simulation.world.loop import SimLoop
from simulation.world.transport import Mode
from tests.unit.transport.recorder import PumpRecorder

PING = encode(pb.CommandPing())
PONG = encode(pb.CommandPong())
FLOW = pb.CommandFlow(consumer_id=1, messagePermits=2)
CONNECT = ClientMachine(now=0.0).start()


class CapturingTransport(asyncio.Transport):
    """A transport that keeps each write, and a peer as slow as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.log: list[str] = []
        self.high = 0
        self.held = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.held

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writes.append(bytes(data))
        self.held += len(data)

    def pause_reading(self) -> None:
        self.log.append("pause")

    def resume_reading(self) -> None:
        self.log.append("resume")

    def close(self) -> None:
        self.log.append("close")

    def abort(self) -> None:
        self.log.append("abort")


def server_pump(handler: PumpRecorder, **options: Any) -> tuple[Pump, CapturingTransport]:
    """A broker's pump whose handshake is done."""
    pump = Pump(ServerMachine(now=asyncio.get_running_loop().time(), **options), handler)
    tap = CapturingTransport()
    pump.connection_made(tap)
    pump.data_received(CONNECT)
    tap.writes.clear()
    return pump, tap


async def link(
    loop: SimLoop, client: PumpRecorder, server: PumpRecorder, **options: Any
) -> tuple[Pump, asyncio.AbstractServer]:
    listening = await listen("broker", 6650, lambda: Pump(ServerMachine(now=loop.time(), **options), server))
    pump = await dial("broker", 6650, lambda: ClientMachine(now=loop.time(), **options), client, timeout_s=10)
    return pump, listening


async def test_writes_of_one_turn_become_one_write() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.write(b"a")
    pump.write_many([b"b", bytearray(b"c"), memoryview(b"d")])
    pump.write(b"e")
    assert tap.writes == []
    await asyncio.sleep(0)
    assert tap.writes == [b"abcde"]
    await asyncio.sleep(0)
    assert tap.writes == [b"abcde"]


async def test_early_bytes_leave_at_once_and_later_ones_of_the_turn_together() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.write(b"a")
    pump.write_early([b"b", b"c"])
    assert tap.writes == [b"abc"]
    pump.write_early([b"d"])
    pump.write_early([b"e"])
    assert tap.writes == [b"abc"]
    await asyncio.sleep(0)
    assert tap.writes == [b"abc", b"de"]
    pump.write_early([b"f"])
    assert tap.writes == [b"abc", b"de", b"f"], "each turn has its early bytes"


async def test_answers_leave_with_the_read_that_asked_for_them() -> None:
    def answer(pump: Pump, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                pump.write(encode_receipt(1, command.sequence_id, 0, 5, 6))

    pump, tap = server_pump(PumpRecorder(answer))
    sends = b"".join(b"".join(encode_send(1, n, 1, 0, b"entry")) for n in range(3))
    pump.data_received(PING + sends)
    assert tap.writes == [PONG + b"".join(encode_receipt(1, n, 0, 5, 6) for n in range(3))]


async def test_a_peer_that_pings_and_never_reads_gets_no_answers() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.data_received(PING * 2)
    assert b"".join(tap.writes) == PONG * 2
    pump.pause_writing()
    pump.data_received(PING * 1000)
    assert b"".join(tap.writes) == PONG * 2
    pump.resume_writing()
    pump.data_received(PING)
    assert b"".join(tap.writes) == PONG * 3


async def test_a_lot_of_bytes_do_not_wait_for_the_end_of_the_turn() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.write(b"x" * (QUEUED_BYTES_MAX - 1))
    assert tap.writes == []
    pump.write_many([b"y"])
    assert [len(write) for write in tap.writes] == [QUEUED_BYTES_MAX]
    await asyncio.sleep(0)
    assert len(tap.writes) == 1


async def test_large_buffers_leave_in_order_too() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.write_many([b"head", b"x" * 100_000, b"y" * 100_000])
    await asyncio.sleep(0)
    assert tap.writes == [b"head" + b"x" * 100_000 + b"y" * 100_000]


async def test_the_handler_hears_of_the_handshake_first() -> None:
    handler = PumpRecorder()
    pump, _ = server_pump(handler)
    assert handler.log == ["connected", "commands"]
    assert [type(command) for command in handler.got] == [pb.CommandConnect]
    assert pump.peer == "10.0.0.1:4711"


async def test_a_broken_stream_closes_the_connection_after_what_was_written() -> None:
    handler = PumpRecorder()
    pump, tap = server_pump(handler)
    pump.write(b"answer")
    pump.data_received(b"\xff" * 8)
    assert tap.writes == [b"answer"]
    assert tap.log == ["close"]
    pump.data_received(encode(FLOW))
    pump.connection_lost(None)
    assert isinstance(handler.error, RemoteProtocolError)
    assert handler.log == ["connected", "commands", "closed"]


async def test_a_slow_peer_makes_the_pump_unwritable_and_the_broker_deaf() -> None:
    pump, tap = server_pump(PumpRecorder())
    called: list[bool] = []
    pump.on_writable = lambda: called.append(pump.writable)
    assert tap.high == UNSENT_BYTES_MAX
    pump.pause_writing()
    assert not pump.writable
    assert tap.log == ["pause"]
    drained = asyncio.ensure_future(pump.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    pump.resume_writing()
    assert tap.log == ["pause", "resume"]
    assert called == [True]
    await drained


async def test_a_client_goes_on_listening_to_a_slow_broker() -> None:
    pump = Pump(ClientMachine(now=asyncio.get_running_loop().time()), PumpRecorder())
    tap = CapturingTransport()
    pump.connection_made(tap)
    pump.pause_writing()
    assert not pump.writable
    assert tap.log == []


async def test_reading_pauses_when_told_and_both_reasons_must_go() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.pause_reading()
    pump.pause_reading()
    pump.pause_writing()
    pump.resume_writing()
    assert tap.log == ["pause"]
    pump.resume_reading()
    assert tap.log == ["pause", "resume"]


async def test_drain_fails_when_the_connection_goes() -> None:
    pump, _ = server_pump(PumpRecorder())
    pump.pause_writing()
    drained = asyncio.ensure_future(pump.drain())
    await asyncio.sleep(0)
    pump.connection_lost(None)
    with pytest.raises(NotConnectedError):
        await drained
    with pytest.raises(NotConnectedError):
        await pump.drain()
    assert not pump.writable


async def test_closing_sends_what_was_written_and_nothing_after() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.write(b"last words")
    pump.close()
    pump.write(b"too late")
    pump.write_many([b"too late"])
    pump.close()
    await asyncio.sleep(0)
    assert tap.writes == [b"last words"]
    assert tap.log == ["close"]
    pump.connection_lost(None)


async def test_aborting_drops_what_was_written() -> None:
    pump, tap = server_pump(PumpRecorder())
    pump.write(b"never sent")
    pump.abort()
    await asyncio.sleep(0)
    assert tap.writes == []
    assert tap.log == ["abort"]
    pump.connection_lost(None)


async def test_commands_go_both_ways_over_a_network(loop: SimLoop) -> None:
    def answer(pump: Pump, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                pump.write(encode_receipt(1, command.sequence_id, 0, 5, command.sequence_id))

    client, server = PumpRecorder(), PumpRecorder(answer)
    pump, listening = await link(loop, client, server)
    assert client.log == ["connected", "commands"]
    for number in range(2000):
        pump.write_many(encode_send(1, number, 1, 0, b"entry" * 20))
        if not pump.writable:
            await pump.drain()
    await asyncio.sleep(5)
    assert client.got[1:] == [SendReceipt(1, n, 0, 5, n) for n in range(2000)]
    pump.close()
    await asyncio.sleep(1)
    assert server.log[-1] == client.log[-1] == "closed"
    assert server.error is None
    assert client.error is None
    listening.close()


@pytest.mark.virtual_time(limit_s=4000)
async def test_an_idle_connection_stays_open(loop: SimLoop) -> None:
    client, server = PumpRecorder(), PumpRecorder()
    pump, _ = await link(loop, client, server, keep_alive_s=30.0)
    await asyncio.sleep(3600)
    assert not pump.closed
    assert "closed" not in server.log


async def test_a_silent_peer_is_dropped_within_two_intervals(loop: SimLoop) -> None:
    client, server = PumpRecorder(), PumpRecorder()
    pump, _ = await link(loop, client, server, keep_alive_s=30.0)
    assert loop.network is not None
    loop.network.set_mode(loop.network.link("test", "broker"), Mode.BLACK_HOLE)
    await asyncio.sleep(61)
    assert pump.closed
    for handler in (client, server):
        assert handler.log[-1] == "closed"
        assert isinstance(handler.error, NotConnectedError)


async def test_a_peer_is_not_blamed_for_silence_while_reading_is_paused(loop: SimLoop) -> None:
    client, server = PumpRecorder(), PumpRecorder()
    pump, _ = await link(loop, client, server, keep_alive_s=30.0)
    assert server.pump is not None
    server.pump.pause_reading()
    await asyncio.sleep(50)
    pump.write(encode(FLOW))
    await asyncio.sleep(5)
    server.pump.resume_reading()
    await asyncio.sleep(5)
    assert server.got[-1] == FLOW
    assert not pump.closed


class OpenPump(Pump):
    """A pump whose transport a test can look at."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        super().connection_made(transport)


async def test_a_client_that_takes_nothing_cannot_fill_the_brokers_memory(loop: SimLoop) -> None:
    unsent: list[int] = []

    def answer(pump: Pump, commands: list[Command]) -> None:
        for _ in commands:
            pump.write(bytes(10_000))
        assert isinstance(pump, OpenPump)
        unsent.append(pump.transport.get_write_buffer_size())

    server = PumpRecorder(answer)
    listening = await listen("broker", 1, lambda: OpenPump(ServerMachine(now=loop.time()), server))
    transport, _ = await loop.create_connection(asyncio.Protocol, "broker", 1)
    transport.write(CONNECT)
    await asyncio.sleep(1)
    transport.pause_reading()
    for _ in range(50):
        transport.write(encode(FLOW) * 50)
        await asyncio.sleep(0.1)
    assert UNSENT_BYTES_MAX < max(unsent) < UNSENT_BYTES_MAX + 2**20
    assert len(server.got) < 300
    await asyncio.sleep(120)
    assert isinstance(server.error, NotConnectedError)
    transport.abort()
    listening.close()


async def test_a_client_that_takes_a_little_is_slow_and_not_dead(loop: SimLoop) -> None:
    handler = PumpRecorder()
    pump, tap = server_pump(handler, keep_alive_s=30.0)
    pump.write(bytes(1000))
    pump.pause_writing()
    for _ in range(10):
        await asyncio.sleep(30)
        tap.held -= 1
    assert tap.log == ["pause"]
    await asyncio.sleep(65)
    assert tap.log == ["pause", "abort"]
    pump.connection_lost(None)


async def test_a_closing_connection_does_not_wait_for_a_dead_peer(loop: SimLoop) -> None:
    handler = PumpRecorder()
    pump, tap = server_pump(handler)
    pump.close()
    await asyncio.sleep(LINGER_S + 1)
    assert tap.log == ["close", "abort"]
    pump.connection_lost(None)
    await asyncio.sleep(100)
    assert tap.log == ["close", "abort"]


async def test_a_peer_that_never_says_connect_is_dropped(loop: SimLoop) -> None:
    server = PumpRecorder()
    listening = await listen("broker", 1, lambda: Pump(ServerMachine(now=loop.time()), server))
    transport, _ = await loop.create_connection(asyncio.Protocol, "broker", 1)
    for _ in range(35):
        transport.write(PING)
        await asyncio.sleep(1)
    assert server.log == ["closed"]
    listening.close()
