"""Clients that no honest program is: silent, half a frame, never reading, never acknowledging, flooding.

Each keeps its connection as long as the broker lets it, and comes back a second later. They run in a process
of their own (`attacker`), so that their work does not slow the clock of the client that is measured.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection
from typing import Final, cast

from anabranch.aio import new_event_loop
from anabranch.protocol.commands import CommandCutter, encode
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.wire import single

BACKLOG_TOPIC: Final = "persistent://public/default/backlog"
FLOODED_TOPIC: Final = "persistent://public/default/flooded"
AGAIN_S: Final = 1.0
CONNECTS_AT_ONCE: Final = 100
RECEIVE_BYTES: Final = 4096
"""Receive buffer of a client that never reads; the kernel holds little more for it."""

HELLO: Final = encode(pb.CommandConnect(client_version="slow", protocol_version=21))
PING: Final = encode(pb.CommandPing())
PONG: Final = encode(pb.CommandPong())
LOOKUP: Final = encode(pb.CommandLookupTopic(topic=FLOODED_TOPIC, request_id=1))
HALF: Final = b"".join(encode_send(1, 0, 1, 0, bytes(2**20)))


def subscribe(name: str, *, durable: bool, permits: int) -> bytes:
    """Commands that attach consumer 1 to the start of the backlog."""
    command = pb.CommandSubscribe(
        topic=BACKLOG_TOPIC,
        subscription=name,
        subType=pb.CommandSubscribe.Shared if durable else pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=1,
        durable=durable,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    return encode(command) + encode(pb.CommandFlow(consumer_id=1, messagePermits=permits))


class SilentSocket(asyncio.Protocol):
    """Sends nothing, not even CONNECT; the base of all others."""

    def __init__(self, number: int, ended: asyncio.Queue[int]) -> None:
        self.number = number
        self._ended = ended
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.begin(self._transport)

    def begin(self, transport: asyncio.Transport) -> None:
        """Send the first bytes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.put_nowait(self.number)


class HalfFrameSocket(SilentSocket):
    """Begins a large frame and sends one more byte of it each second."""

    _begun = False

    def begin(self, transport: asyncio.Transport) -> None:
        transport.write(HELLO)
        asyncio.get_running_loop().call_later(1.0, self._send_byte)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None and not self._begun:
            self._begun = True
            self._transport.write(HALF[: 2**19])

    def _send_byte(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(b"\0")
            asyncio.get_running_loop().call_later(1.0, self._send_byte)


class NeverReadsSocket(SilentSocket):
    """Asks for the whole backlog, and for many answers, and reads none of them."""

    def begin(self, transport: asyncio.Transport) -> None:
        transport.pause_reading()
        reader = subscribe(f"never-reads-{self.number}", durable=False, permits=10**6)
        transport.write(HELLO + reader + LOOKUP * 1000 + PING * 1000)


class NeverAcksSocket(SilentSocket):
    """Receives messages and acknowledges none; answers PINGs."""

    def begin(self, transport: asyncio.Transport) -> None:
        self._cutter = CommandCutter()
        transport.write(HELLO + subscribe("never-acks", durable=True, permits=10**6))

    def data_received(self, data: bytes) -> None:
        for command in self._cutter.read(data):
            if isinstance(command, pb.CommandPing) and self._transport is not None:
                self._transport.write(PONG)


class FloodSocket(SilentSocket):
    """Publishes, asks and pings as fast as the broker reads; takes the answers and does not look at them."""

    def begin(self, transport: asyncio.Transport) -> None:
        self._sequence = count()
        self._paused = False
        self._cutter: CommandCutter | None = CommandCutter()
        transport.set_write_buffer_limits(high=2**16)
        producer = pb.CommandProducer(topic=FLOODED_TOPIC, producer_id=1, request_id=2)
        transport.write(HELLO + encode(producer))

    def data_received(self, data: bytes) -> None:
        commands = self._cutter.read(data) if self._cutter is not None else []
        if any(isinstance(command, pb.CommandProducerSuccess) for command in commands):
            self._cutter = None
            self._flood()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flood()

    def _flood(self) -> None:
        assert self._transport is not None
        if self._paused or self._cutter is not None or self._transport.is_closing():
            return
        frames = [PING * 200, LOOKUP * 20]
        for _ in range(20):
            sequence = next(self._sequence)
            frames += encode_send(1, sequence, 1, sequence, single(b"flood" * 20, sequence))
        self._transport.write(b"".join(frames))
        asyncio.get_running_loop().call_soon(self._flood)


KINDS: Final = {
    "silent": SilentSocket,
    "half a frame": HalfFrameSocket,
    "never reads": NeverReadsSocket,
    "never acks": NeverAcksSocket,
    "floods": FloodSocket,
}


@contextmanager
def attacker(port: int, kind: str, clients: int) -> Iterator[Connection]:
    """Run this many clients until the block ends; the connection is readable once all were open."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_attacker, args=(port, kind, clients, theirs))
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def run_attacker(port: int, kind: str, clients: int, opened: Connection) -> None:
    """Open all clients and keep them open; the entry of the attacker's process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # The measured client shares the machine; its waits must be those of the broker.
    os.nice(10)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_keep_open(port, KINDS[kind], clients, opened))


async def _keep_open(port: int, kind: type[SilentSocket], clients: int, opened: Connection) -> None:
    ended: asyncio.Queue[int] = asyncio.Queue()
    turns = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def connect(number: int) -> None:
        async with turns:
            while True:
                with suppress(OSError):
                    await _connect(port, kind, number, ended)
                    return
                await asyncio.sleep(AGAIN_S)

    await asyncio.gather(*(connect(number) for number in range(clients)))
    opened.send(True)
    async with asyncio.TaskGroup() as tasks:
        while True:
            number = await ended.get()
            await asyncio.sleep(AGAIN_S / clients)
            tasks.create_task(connect(number))


async def _connect(port: int, kind: type[SilentSocket], number: int, ended: asyncio.Queue[int]) -> None:
    loop = asyncio.get_running_loop()
    plain = socket.socket()
    plain.setblocking(False)
    if kind is NeverReadsSocket:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    try:
        await loop.sock_connect(plain, ("127.0.0.1", port))
        await loop.create_connection(lambda: kind(number, ended), sock=plain)
    except OSError:
        plain.close()
        raise
