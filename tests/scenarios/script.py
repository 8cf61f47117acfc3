"""Runs the commands of a scenario file against a simulated cluster and returns the file with its trace.

A line that begins with `>` is a command; `#` begins a remark, which is kept; other lines are the trace. After
each command the cluster runs for a second of virtual time. The commands are the methods of `Script`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from anabranch import AsyncProducer, Checkpoint
from anabranch.config.broker import BrokerConfig
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScalePolicy
from simulation.cluster.cluster import Cluster, Death
from simulation.judges.wiretap import WireTap
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess
from tests.scenarios import readers
from tests.scenarios.readers import Open, ScriptReader
from tests.scenarios.trace import Trace

TOPIC = TopicName("topic", "public", "default", "orders")
SETTLE_S = 1.0
CONFIG = BrokerConfig(workers=2, lease_s=0.6, consumer_grace_s=3.0, auto_scale=AutoScalePolicy(enabled=False))
RESTART_S = 4.5
"""How long a killed broker stays away."""


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
        self._checkpoint: Checkpoint | None = None
        self._commands: tuple[tuple[str, Callable[..., Awaitable[None]]], ...] = (
            (r"start the brokers", self._start),
            (r"create the topic with (\d+) segments?", self._create),
            (r"delete the topic", self._delete),
            (r"produce (.+)", self._produce),
            (r"split (\d+)", self._split),
            (r"split (\d+) at ([0-9a-f ]+)", self._split_at),
            (r"merge (\d+(?: \d+)+)", self._merge),
            (r"rebucket (\d+) at ([0-9a-f ]+)", self._rebucket),
            (r"consumer (\w+) joins (\w+)", self._join_stream),
            (r"queue consumer (\w+) joins (\w+)", self._join_queue),
            (
                r"queue consumer (\w+) joins (\w+) with dead letters after (\d+) redeliveries",
                self._join_buried,
            ),
            (r"keyed queue consumer (\w+) joins (\w+)", self._join_keyed),
            (r"checkpoint consumer (\w+) starts at (earliest|latest)", self._start_checkpoint),
            (r"checkpoint consumer (\w+) continues at the checkpoint", self._continue_checkpoint),
            (r"checkpoint consumer (\w+) joins group (\w+)", self._join_group),
            (r"take the checkpoint of (\w+)", self._take_checkpoint),
            (r"commit (\w+)", self._commit),
            (r"consumer (\w+) handles (\w+)", self._handle),
            (r"consumer (\w+) handles (\w+), and hangs at (\S+)", self._handle_hanging),
            (r"consumer (\w+) handles (\w+), and fails (\d+) times at (\S+)", self._handle_failing),
            (r"consumer (\w+) continues with (\S+)", self._continue_key),
            (r"consumer (\w+) leaves", self._leave),
            (r"consumer (\w+) dies", self._die),
            (r"consumer (\w+) hangs for (\d+) s", self._hang),
            (r"consumer (\w+) acknowledges (\S+)", self._acknowledge_key),
            (r"consumer (\w+) refuses (\S+)", self._refuse),
            (r"consumer (\w+) seeks to (earliest|latest)", self._seek),
            (r"consumer (\w+) unsubscribes", self._unsubscribe),
            (r"acknowledge (\w+)", self._acknowledge),
            (r"kill the leader", self._kill_leader),
            (r"kill broker (\d+)", self._kill),
            (r"stop broker (\d+)", self._stop),
            (r"pause broker (\d+) for (\d+) s", self._pause),
            (r"cut the power", self._cut_power),
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
        for reader in self._readers.values():
            reader.leave()
        await asyncio.sleep(SETTLE_S)
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

    async def _delete(self) -> None:
        await self.cluster.with_controller(TOPIC, lambda leader: leader.delete(force=True))

    async def _split(self, segment: str) -> None:
        await self.cluster.with_controller(TOPIC, lambda leader: leader.split(int(segment)))

    async def _split_at(self, segment: str, points: str) -> None:
        """Split at the first hash of each new segment but the first."""
        await self.cluster.with_controller(TOPIC, lambda leader: leader.split(int(segment), hashes(points)))

    async def _merge(self, segments: str) -> None:
        ids = [int(segment) for segment in segments.split()]
        await self.cluster.with_controller(TOPIC, lambda leader: leader.merge(ids))

    async def _rebucket(self, segment: str, points: str) -> None:
        await self.cluster.with_controller(
            TOPIC, lambda leader: leader.rebucket(int(segment), hashes(points))
        )

    # Consumers.

    def _reader(self, name: str) -> ScriptReader:
        process = SimProcess(self.loop, f"consumer {name}")
        reader = self._readers[name] = ScriptReader(name, process, self.trace)
        return reader

    def _join(self, name: str, opening: Open) -> None:
        reader = self._reader(name)
        reader.process.spawn(reader.read(self.cluster.client(reader.process), opening))

    async def _join_stream(self, name: str, subscription: str) -> None:
        self._join(name, readers.stream(subscription))

    async def _join_queue(self, name: str, subscription: str) -> None:
        self._join(name, readers.queue(subscription))

    async def _join_buried(self, name: str, subscription: str, redeliveries: str) -> None:
        self._join(name, readers.queue(subscription, dead_letter=readers.dead_letters(int(redeliveries))))

    async def _join_keyed(self, name: str, subscription: str) -> None:
        self._join(name, readers.queue(subscription, order="key"))

    async def _start_checkpoint(self, name: str, where: str) -> None:
        start = Checkpoint.earliest() if where == "earliest" else Checkpoint.latest()
        self._join(name, readers.checkpoint(start))

    async def _continue_checkpoint(self, name: str) -> None:
        assert self._checkpoint is not None, "no checkpoint was taken"
        self._join(name, readers.checkpoint(self._checkpoint))

    async def _join_group(self, name: str, group: str) -> None:
        self._join(name, readers.checkpoint(Checkpoint.earliest(), group))

    async def _take_checkpoint(self, name: str) -> None:
        self._checkpoint = self._readers[name].consumer.checkpoint()

    async def _commit(self, name: str) -> None:
        """Commit the position of a member of a checkpoint group to the leader."""
        await self._in_process(name, self._readers[name].consumer.commit())

    async def _handle(self, name: str, subscription: str) -> None:
        reader = self._reader(name)
        client = self.cluster.client(reader.process)
        reader.process.spawn(reader.handle(client, readers.stream(subscription)))

    async def _handle_hanging(self, name: str, subscription: str, key: str) -> None:
        await self._handle(name, subscription)
        self._readers[name].hanging[key] = asyncio.Event()

    async def _handle_failing(self, name: str, subscription: str, count: str, key: str) -> None:
        await self._handle(name, subscription)
        self._readers[name].failures[key] = int(count)

    async def _continue_key(self, name: str, key: str) -> None:
        self._readers[name].hanging[key].set()

    async def _leave(self, name: str) -> None:
        self._readers.pop(name).leave()

    async def _die(self, name: str) -> None:
        self._readers.pop(name).process.kill()

    async def _hang(self, name: str, for_s: str) -> None:
        """Stop a consumer's process for a while, as SIGSTOP and SIGCONT do."""
        process = self._readers[name].process
        process.pause()
        self.loop.call_later(int(for_s), process.resume)

    async def _acknowledge(self, name: str) -> None:
        await self._in_process(name, self._readers[name].acknowledge())

    async def _acknowledge_key(self, name: str, key: str) -> None:
        await self._in_process(name, self._readers[name].acknowledge_key(key))

    async def _refuse(self, name: str, key: str) -> None:
        await self._in_process(name, self._readers[name].refuse(key))

    async def _seek(self, name: str, where: str) -> None:
        await self._in_process(name, self._readers[name].consumer.seek(where))

    async def _unsubscribe(self, name: str) -> None:
        await self._in_process(name, self._readers[name].consumer.unsubscribe())

    async def _in_process(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        await self._readers[name].process.spawn(work)

    # Brokers.

    async def _kill_leader(self) -> None:
        number = self.trace.leader
        assert number is not None, "the topic has no leader now"
        self.trace.note(f"broker {number} is killed")
        self.cluster.kill_broker(self.cluster.hosts[number])

    async def _kill(self, number: str) -> None:
        self.cluster.kill_broker(self.cluster.hosts[int(number)])

    async def _stop(self, number: str) -> None:
        await self.cluster.stop_broker(self.cluster.hosts[int(number)])

    async def _pause(self, number: str, for_s: str) -> None:
        self.cluster.pause_broker(self.cluster.hosts[int(number)], float(for_s))

    async def _cut_power(self) -> None:
        self.cluster.lose_machine()

    async def _arm(self, step: str) -> None:
        """Kill the leader when it reaches a named step of its next operation."""
        self.cluster.deaths.append(Death(step))

    async def _wait(self, seconds: str) -> None:
        await asyncio.sleep(int(seconds) - SETTLE_S)


def hashes(text: str) -> list[int]:
    return [int(part, 16) for part in text.split()]


def run_script(text: str) -> str:
    """Run a scenario on a fresh cluster."""
    with SimLoop("scenario") as loop:
        script = Script(loop)
        traced = loop.run(script.run(text))
        assert not loop.errors, loop.errors
        return traced
