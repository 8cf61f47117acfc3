"""The broker's pump reads in slices, waits for its turn, and holds a bounded number of bytes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from anabranch.config.broker import BrokerConfig
from anabranch.protocol.commands import encode
from anabranch.protocol.connection import ClientMachine, ServerMachine
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.fair_pump import FairPump, SharedLimits
from anabranch.transport.pump import UNSENT_BYTES_MAX
from anabranch.transport.turns import SLICE_BYTES_FIRST, SLICE_COMMANDS, TURNS_AT_ONCE
from tests.unit.transport.recorder import PumpRecorder

PING = encode(pb.CommandPing())
CONNECT = ClientMachine(now=0.0).start()
MIB = 2**20


class KernelSocket(asyncio.Transport):
    """A transport over a peer that has sent all its bytes: it reads as an event loop does."""

    def __init__(self, sent: bytes = b"") -> None:
        super().__init__()
        self.sent = sent
        self.reads: list[int] = []
        self.reading = True
        self.unsent = 0
        self.aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.unsent += len(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    def poll(self, pump: FairPump) -> None:
        """Read while reading is not paused and bytes are there."""
        while self.reading and self.sent:
            buffer = pump.get_buffer(-1)
            size = min(len(buffer), len(self.sent))
            buffer[:size], self.sent = self.sent[:size], self.sent[size:]
            self.reads.append(size)
            pump.buffer_updated(size)


def limits_of(**settings: Any) -> SharedLimits:
    def make() -> FairPump:
        raise AssertionError("no connection is accepted here")

    return SharedLimits(BrokerConfig(**settings), make)


def served(limits: SharedLimits, sent: bytes = b"") -> tuple[FairPump, KernelSocket, PumpRecorder]:
    """A pump whose handshake is done, and the socket of a peer that has sent these bytes."""
    handler = PumpRecorder()
    pump = FairPump(ServerMachine(now=asyncio.get_running_loop().time()), handler, limits)
    transport = KernelSocket(sent)
    pump.connection_made(transport)
    pump.data_received(CONNECT)
    return pump, transport, handler


async def test_a_flood_of_small_commands_is_read_in_small_slices() -> None:
    pump, transport, _ = served(limits_of(), PING * 5000)
    while transport.sent:
        transport.poll(pump)
        assert not (transport.reading and transport.sent)
        await asyncio.sleep(0)
    assert max(transport.reads) <= SLICE_BYTES_FIRST
    assert transport.reads[5] <= SLICE_COMMANDS * len(PING)
    assert transport.unsent >= 5000 * len(PING)


async def test_large_entries_are_read_in_large_slices() -> None:
    entry = b"".join(encode_send(1, 0, 1, 0, bytes(100_000)))
    pump, transport, handler = served(limits_of(), entry * 50)
    while transport.sent:
        transport.poll(pump)
        await asyncio.sleep(0)
    assert len(handler.got) == 51
    assert max(transport.reads) == 2**18
    assert len(transport.reads) < 35


async def test_busy_connections_take_turns_and_a_quiet_one_is_read_at_once() -> None:
    limits = limits_of()
    busy = [served(limits, PING * 2000) for _ in range(10 * TURNS_AT_ONCE)]
    for pump, transport, _ in busy:
        transport.poll(pump)
    quiet, quiet_socket, _ = served(limits)
    for _ in range(20):
        before = sum(len(transport.reads) for _, transport, _ in busy)
        await asyncio.sleep(0)
        for pump, transport, _ in busy:
            transport.poll(pump)
        assert sum(len(transport.reads) for _, transport, _ in busy) - before <= TURNS_AT_ONCE
        quiet_socket.sent = PING
        quiet_socket.poll(quiet)
        assert quiet_socket.reading
    reads = [len(transport.reads) for _, transport, _ in busy]
    assert max(reads) - min(reads) <= 1


async def test_a_connection_that_waits_for_its_turn_is_not_taken_for_dead() -> None:
    limits = limits_of()
    pump, transport, handler = served(limits, PING * 200)
    limits.turns.later = lambda action: None  # type: ignore[method-assign]
    transport.poll(pump)
    await asyncio.sleep(300)
    assert not transport.aborted
    pump.wait_for_turn(False)
    await asyncio.sleep(300)
    assert transport.aborted
    assert handler.log == ["connected", "commands"]


async def test_incomplete_frames_of_all_connections_are_bounded() -> None:
    limits = limits_of(partial_frames_bytes_max=10 * MIB, max_message_bytes=5 * MIB)
    part = b"".join(encode_send(1, 0, 1, 0, bytes(2 * MIB)))[:MIB]
    pumps = [served(limits) for _ in range(12)]
    for pump, _, _ in pumps:
        pump.data_received(part)
    assert [transport.aborted for _, transport, _ in pumps] == [True] * 2 + [False] * 10
    assert limits.partial.total <= 10 * MIB
    for pump, _, _ in pumps:
        pump.connection_lost(None)
    assert limits.partial.total == 0


async def test_a_frame_that_is_completed_is_not_held_any_more() -> None:
    limits = limits_of()
    pump, _, handler = served(limits)
    frame = b"".join(encode_send(1, 0, 1, 0, bytes(MIB)))
    pump.data_received(frame[:-10])
    assert limits.partial.total > MIB - 10
    pump.data_received(frame[-10:])
    assert limits.partial.total == 0
    assert len(handler.got) == 2


async def test_a_closed_connection_is_freed_at_once() -> None:
    limits = limits_of()
    pump, _, handler = served(limits)
    pump.on_writable = handler.log.clear
    part = b"".join(encode_send(1, 0, 1, 0, bytes(MIB)))[:-10]
    pump.data_received(part)
    machine = pump.machine
    assert machine.partial_bytes == len(part)
    pump.connection_lost(None)
    assert machine.partial_bytes == 0
    freed = weakref.ref(pump)
    gc.disable()
    try:
        handler.pump = None
        del pump
        assert freed() is None
    finally:
        gc.enable()


async def test_unsent_answers_of_all_connections_are_bounded() -> None:
    limits = limits_of(unsent_bytes_max=10 * MIB)
    pumps = [served(limits) for _ in range(12)]
    for pump, transport, _ in pumps:
        transport.unsent = UNSENT_BYTES_MAX
        pump.pause_writing()
        assert not (transport.reading and transport.sent)
    assert [transport.aborted for _, transport, _ in pumps] == [True] * 2 + [False] * 10
    pumps[-1][0].resume_writing()
    assert limits.unsent.total == 9 * MIB
