"""Sends fuzzed frames to a real broker while a canary publishes and consumes on a topic of its own.

The attacker is a process of its own, so that its work does not slow the canary's clock. Each session connects
to the broker, sends well-formed commands in random order with some mutated ones, and reads until the broker
closes the connection.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import quantiles
from typing import Final, NamedTuple

from anabranch import AsyncClient
from anabranch.protocol.commands import CommandCutter, encode
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.harness.process import BrokerProcess
from tests.fuzz.decoders import FuzzError
from tests.fuzz.making import IDS, TOPICS, FrameMaker

CANARY: Final = "topic://public/default/canary"
BEAT_S: Final = 0.01
PATIENCE_S: Final = 30.0
"""Longest time until the broker closes a session whose client sends nothing more."""
SESSIONS_AT_ONCE: Final = 4
FRAMES_PER_SESSION: Final = 100
MUTATED_PART: Final = 0.02
FOREIGN_PART: Final = 0.02
"""Mutated frames, and commands that only a broker sends, end most connections; so they are rare."""
BEAT_P99_MAX_S: Final = 0.25
MEMORY_GROWTH_MAX: Final = 400 * 2**20


HELLO: Final = encode(pb.CommandConnect(client_version="fuzz", protocol_version=21))
PONG: Final = encode(pb.CommandPong())
OPENING: Final = (pb.CommandProducerSuccess, pb.CommandSuccess, pb.CommandError)
OPENING_ANSWERS: Final = 2 * IDS


class LiveFigures(NamedTuple):
    """Latencies of the canary and memory of the broker."""

    frames: int
    seconds: float
    p50_s: float
    p99_s: float
    quiet_p99_s: float
    memory_growth_bytes: int


def fuzz_live(seed: int, frames: int) -> LiveFigures:
    """Send this many frames to a new broker; raises FuzzError if the broker or the canary suffers."""
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "data") as broker:
        figures = asyncio.run(_attack(broker, seed, frames))
        _judge(broker, figures)
        stopped = broker.stop()
        if stopped != 0:
            raise FuzzError(f"seed {seed}: the broker stopped with {stopped}:\n{broker.log_text[-4000:]}")
    return figures


def _judge(broker: BrokerProcess, figures: LiveFigures) -> None:
    log = broker.log_text
    if not broker.running:
        raise FuzzError(f"the broker ended:\n{log[-4000:]}")
    if "Traceback" in log:
        raise FuzzError(f"the broker logged a traceback:\n{log[log.index('Traceback') - 1000 :][:6000]}")
    if figures.memory_growth_bytes > MEMORY_GROWTH_MAX:
        raise FuzzError(f"the memory of the broker grew by {figures.memory_growth_bytes} bytes")
    if figures.p99_s > max(BEAT_P99_MAX_S, 5 * figures.quiet_p99_s):
        raise FuzzError(f"the canary's p99 was {figures.p99_s:.3f} s, {figures.quiet_p99_s:.3f} s before")


async def _attack(broker: BrokerProcess, seed: int, frames: int) -> LiveFigures:
    async with AsyncClient(broker.url) as client:
        canary = Canary(client)
        for topic in TOPICS:
            if topic.startswith("topic://"):
                await (await client.create_producer(topic)).close()
        await canary.beat_until(lambda: len(canary.beats_s) >= 200)
        quiet_p99_s = canary.p99_s()
        canary.beats_s.clear()
        before = broker.memory_bytes()
        began = time.monotonic()
        with _attacker(broker.port, seed, frames) as attacker:
            await canary.beat_until(lambda: not attacker.is_alive())
            if attacker.exitcode != 0:
                raise FuzzError(f"the attacker ended with {attacker.exitcode}:\n{broker.log_text[-4000:]}")
        seconds = time.monotonic() - began
        growth = broker.memory_bytes() - before
        return LiveFigures(frames, seconds, canary.p50_s(), canary.p99_s(), quiet_p99_s, growth)


class Canary:
    """Publishes numbers and expects them back in order, one at a time."""

    def __init__(self, client: AsyncClient) -> None:
        self.beats_s: list[float] = []
        self._client = client
        self._next = 0

    async def beat_until(self, done: Callable[[], bool]) -> None:
        client = self._client
        async with (
            await client.create_producer(CANARY) as producer,
            await client.subscribe_stream(CANARY, "canary", initial_position="earliest") as consumer,
        ):
            while not done():
                began = time.monotonic()
                await producer.send(str(self._next).encode(), key="beat")
                message = await consumer.receive(timeout=PATIENCE_S)
                self.beats_s.append(time.monotonic() - began)
                if message.value != str(self._next).encode():
                    raise FuzzError(f"the canary received {message.value!r} instead of {self._next}")
                await consumer.acknowledge_cumulative(message)
                self._next += 1
                await asyncio.sleep(BEAT_S)

    def p50_s(self) -> float:
        return quantiles(self.beats_s, n=100)[49]

    def p99_s(self) -> float:
        return quantiles(self.beats_s, n=100)[98]


@contextmanager
def _attacker(port: int, seed: int, frames: int) -> Iterator[BaseProcess]:
    process = multiprocessing.get_context("spawn").Process(target=run_attacker, args=(port, seed, frames))
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join()


def run_attacker(port: int, seed: int, frames: int) -> None:
    """Send all frames; the entry of the attacker's process."""
    asyncio.run(_all_sessions(port, seed, frames))


async def _all_sessions(port: int, seed: int, frames: int) -> None:
    maker = FrameMaker(seed)
    left = frames

    async def worker() -> None:
        nonlocal left
        while left > 0:
            count = min(left, FRAMES_PER_SESSION)
            left -= count
            await _session(port, maker, count)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(SESSIONS_AT_ONCE):
            tasks.create_task(worker())


async def _session(port: int, maker: FrameMaker, count: int) -> None:
    """Send this many frames, on a new connection whenever the broker closes the last one."""
    while count > 0:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answers = FuzzAnswers(reader, writer)
        reading = asyncio.create_task(answers.read_all())
        with suppress(OSError):
            writer.writelines([HELLO, *maker.opening()])
            await answers.opened.wait()
            while count > 0 and not reading.done():
                count -= 1
                writer.write(_one_frame(maker))
                await writer.drain()
                await asyncio.sleep(0)
            answers.sent_all = True
            writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            await reading
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class FuzzAnswers:
    """Reads until the broker closes the connection, and answers its PINGs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened = asyncio.Event()
        """Set when the broker has answered all commands of the opening, or has closed the connection."""
        self.sent_all = False
        self._reader = reader
        self._writer = writer
        self._cutter = CommandCutter()
        self._left = OPENING_ANSWERS

    async def read_all(self) -> None:
        with suppress(OSError):
            while data := await self._reader.read(2**16):
                for command in self._cutter.read(data):
                    self._left -= isinstance(command, OPENING)
                    if isinstance(command, pb.CommandPing) and not self.sent_all:
                        self._writer.write(PONG)
                if self._left <= 0:
                    self.opened.set()
        self.opened.set()


def _one_frame(maker: FrameMaker) -> bytes:
    if maker.rng.random() < FOREIGN_PART:
        return maker.frame()
    frame = maker.command()
    return maker.mutate(frame) if maker.rng.random() < MUTATED_PART else frame
