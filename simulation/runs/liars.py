"""Producers that lie in a cluster run: brokers refuse lies that they can see, readers pass over the rest.

A liar speaks the protocol itself, because a producer of the client does not lie.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

from anabranch.errors import AnabranchError
from anabranch.protocol.commands import Command, SendReceipt, encode
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.dialing import dial
from anabranch.transport.pump import Pump
from simulation.cluster.cluster import PORT
from simulation.runs.clients import Clients
from simulation.runs.readers import TOPIC
from simulation.runs.shape import SENDER, Shape
from simulation.world.lies import HIDDEN, VISIBLE, Lie, frame_of
from simulation.world.process import SimProcess

PATIENCE_S = 2.0
LIES_AT_ONCE = 5


class Liars:
    """All lies of one run; a lie that a broker should have refused goes to `found`."""

    def __init__(self, clients: Clients, shape: Shape, found: list[str]) -> None:
        self._clients = clients
        self._shape = shape
        self._found = found
        self._sequence_ids = count(2)

    async def run(self) -> None:
        """Lie at random times; return when all lies are told."""
        rng = self._clients.rng
        for number in range(self._shape.liars):
            await asyncio.sleep(rng.uniform(0, self._shape.busy_s / self._shape.liars))
            process = self._clients.process(f"liar-{number}")
            with suppress(AnabranchError, TimeoutError):
                await process.spawn(self._lie(process))

    async def _lie(self, process: SimProcess) -> None:
        """Attach to an active segment at any broker, and send lies of both kinds."""
        cluster, rng = self._clients.cluster, self._clients.rng
        connection = WireUser()
        host = rng.choice(cluster.hosts).name
        pump = await dial(host, PORT, self._machine, connection, timeout_s=PATIENCE_S)
        try:
            segment = rng.choice(cluster.history.layouts[-1].active)
            topic = str(TOPIC.segment_name(segment.range, segment.id))
            pump.write(
                encode(
                    pb.CommandProducer(topic=topic, producer_id=0, request_id=1, producer_name=process.name)
                )
            )
            if not isinstance(await connection.take(), pb.CommandProducerSuccess):
                return
            for _ in range(LIES_AT_ONCE):
                lie = rng.choice(VISIBLE if rng.random() < 0.3 else HIDDEN)
                pump.write(frame_of(lie.tell(process.name, next(self._sequence_ids)), 0))
                self._judge(lie, await connection.take())
        finally:
            pump.abort()

    def _machine(self) -> ClientMachine:
        return self._clients.cluster.machine("liar", SENDER)

    def _judge(self, lie: Lie, answer: Command) -> None:
        if not isinstance(answer, SendReceipt):
            self._clients.counts["lie refused"] += 1
        elif lie in VISIBLE:
            self._found.append(f"a broker stored {lie}, although it can see the lie")
        else:
            self._clients.counts["lie stored"] += 1


class WireUser:
    """The answers of the broker, one after the other."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[Command | None] = asyncio.Queue()

    def connected(self, pump: Pump) -> None:
        pass

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        for command in commands:
            if not isinstance(command, pb.CommandConnected | pb.CommandAuthChallenge):
                self._answers.put_nowait(command)

    def closed(self, pump: Pump, error: Exception | None) -> None:
        self._answers.put_nowait(None)

    async def take(self) -> Command:
        """The next answer; TimeoutError if the broker is silent or has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            answer = await self._answers.get()
        if answer is None:
            raise TimeoutError("the broker closed the connection")
        return answer
