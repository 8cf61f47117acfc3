"""Runs the commands of a scenario file against a simulated cluster and returns the file with its trace.

A line that begins with `>` is a command; `#` begins a remark, which is kept; other lines are the trace. After
each command the cluster runs for a second of virtual time. The commands are the methods of `Script`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from anabranch import AsyncProducer, AsyncStreamConsumer, Message
from anabranch.config.broker import BrokerConfig
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScalePolicy
from simulation.cluster.cluster import Cluster, Death
from simulation.judges.wiretap import WireTap
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess
from tests.scenarios.trace import Trace

TOPIC = TopicName("topic", "public", "default", "orders")
SETTLE_S = 1.0
CONFIG = BrokerConfig(workers=2, lease_s=0.6, consumer_grace_s=3.0, auto_scale=AutoScalePolicy(enabled=False))
RESTART_S = 4.5
"""How long a killed broker stays away."""


@dataclass(slots=True)
class ScriptReader:
    """One consumer, in a process of its own."""

    process: SimProcess
    consumer: AsyncStreamConsumer[bytes] | None = None
    last: Message[bytes] | None = None
    leaving: bool = False


class Script:
    """A cluster and what the commands so far have started on it."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = Cluster(loop, config=CONFIG)
        self.cluster.restart_delay_s = (RESTART_S, RESTART_S)
        self.cluster.network.latency_s = (0.001, 0.001)
        self.cluster.network.pieces = 0.0
        self.trace = Trace(loop, TOPIC)
        self.cluster.tree.seen = self.trace.changed
        self.cluster.network.tap = WireTap(self.trace)
        self._producer: AsyncProducer[bytes] | None = None
        self._readers: dict[str, ScriptReader] = {}
        self._commands: tuple[tuple[str, Callable[..., Awaitable[None]]], ...] = (
            (r"start the brokers", self._start),
            (r"create the topic with (\d+) segments?", self._create),
            (r"produce (.+)", self._produce),
            (r"split (\d+)", self._split),
            (r"merge (\d+) (\d+)", self._merge),
            (r"consumer (\w+) joins (\w+)", self._join),
            (r"consumer (\w+) leaves", self._leave),
            (r"consumer (\w+) dies", self._die),
            (r"acknowledge (\w+)", self._acknowledge),
            (r"kill the leader", self._kill_leader),
            (r"let the leader die at (\S+)", self._arm),
            (r"wait (\d+) s", self._wait),
        )

    async def run(self, text: str) -> str:
        """Run each command of a file; return the file with the trace of this run."""
        keeping = self.loop.create_task(self.cluster.keep_up())
        out: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                out += ["", line]
                self.trace.begin()
                await self._do(line[2:])
                await asyncio.sleep(SETTLE_S)
                out += self.trace.take()
            elif line.startswith("#"):
                out.append(line)
        self.trace.take()
        keeping.cancel()
        return "\n".join(out) + "\n"

    async def _do(self, command: str) -> None:
        for pattern, method in self._commands:
            if found := re.fullmatch(pattern, command):
                try:
                    await method(*found.groups())
                except AnabranchError as error:
                    self.trace.note(f"the command fails: {type(error).__name__}: {error}")
                return
        raise ValueError(f"unknown command: {command!r}; see Script for the commands")

    async def _start(self) -> None:
        for host in self.cluster.hosts:
            await host.up.wait()

    async def _create(self, segments: str) -> None:
        await self.cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, int(segments)))

    async def _produce(self, pairs: str) -> None:
        """Send `key value, key value`, each message after the receipt of the one before."""
        if self._producer is None:
            process = SimProcess(self.loop, "the producer")
            client = self.cluster.client(process)
            self._producer = await process.spawn(client.create_producer(str(TOPIC), name="producer"))
        for pair in pairs.split(", "):
            key, value = pair.split(" ")
            id_ = await self._producer.send(value.encode(), key=key)
            bucket = self.trace.bucket_of(id_.segment, key)
            self.trace.note(f"{key} {value!r} is confirmed in segment {id_.segment}, bucket {bucket}")

    async def _split(self, segment: str) -> None:
        await self.cluster.with_controller(TOPIC, lambda leader: leader.split(int(segment)))

    async def _merge(self, *segments: str) -> None:
        ids = [int(segment) for segment in segments]
        await self.cluster.with_controller(TOPIC, lambda leader: leader.merge(ids))

    async def _join(self, name: str, subscription: str) -> None:
        process = SimProcess(self.loop, f"consumer {name}")
        reader = self._readers[name] = ScriptReader(process)
        process.spawn(self._read(name, subscription, reader))

    async def _read(self, name: str, subscription: str, reader: ScriptReader) -> None:
        async with self.cluster.client(reader.process) as client:
            reader.consumer = consumer = await client.subscribe_stream(
                str(TOPIC), subscription, name=name, initial_position="earliest"
            )
            while not reader.leaving:
                for message in await consumer.receive_many(100, timeout=0.1):
                    reader.last = message
                    received = f"{message.key} {bytes(message.data).decode()!r}"
                    self.trace.note(f"consumer {name} receives {received} from segment {message.id.segment}")

    async def _leave(self, name: str) -> None:
        self._readers.pop(name).leaving = True

    async def _die(self, name: str) -> None:
        self._readers.pop(name).process.kill()

    async def _acknowledge(self, name: str) -> None:
        """Acknowledge every message that the consumer has received."""
        reader = self._readers[name]
        assert reader.consumer is not None, f"consumer {name} is still joining"
        assert reader.last is not None, f"consumer {name} has received no message"
        await reader.process.spawn(reader.consumer.acknowledge_cumulative(reader.last))

    async def _kill_leader(self) -> None:
        number = self.trace.leader
        assert number is not None, "the topic has no leader now"
        self.trace.note(f"broker {number} is killed")
        self.cluster.kill_broker(self.cluster.hosts[number])

    async def _arm(self, step: str) -> None:
        """Kill the leader when it reaches a named step of its next operation."""
        self.cluster.deaths.append(Death(step))

    async def _wait(self, seconds: str) -> None:
        await asyncio.sleep(int(seconds) - SETTLE_S)


def run_script(text: str) -> str:
    """Run a scenario on a fresh cluster."""
    with SimLoop("scenario") as loop:
        script = Script(loop)
        traced = loop.run(script.run(text))
        assert not loop.errors, loop.errors
        return traced
