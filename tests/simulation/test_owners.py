"""One of two brokers dies or hangs: clients lose no message, keep the order and wait only briefly."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from anabranch import AsyncClient, Checkpoint
from anabranch.config.broker import BrokerConfig
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import AnabranchError
from anabranch.metadata.layouts import layout_of
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScalePolicy
from simulation.cluster.cluster import Cluster
from simulation.cluster.host import Host
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

TOPIC = TopicName.parse("topic://public/default/orders")
KEYS = [f"key-{key}" for key in range(16)]
LEASE_S = 8.0
TAKEOVER_S = LEASE_S + 2.0


class OwnedTraffic:
    """A producer that sends all the time, a consumer of each kind, and their observations."""

    def __init__(self, loop: SimLoop, client: AsyncClient) -> None:
        self._loop = loop
        self._client = client
        self.seen: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.slowest_send_s = 0.0
        self.longest_silence_s: dict[str, float] = defaultdict(float)
        self.sent = 0
        self.over = False

    async def run(self) -> None:
        topic = str(TOPIC)
        producer = await self._client.create_producer(topic)
        stream = await self._client.subscribe_stream(topic, "s", initial_position="earliest")
        queue = await self._client.subscribe_queue(topic, "q", initial_position="earliest")
        checkpoint = await self._client.create_checkpoint_consumer(topic, start=Checkpoint.earliest())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read("stream", stream))
            group.create_task(self._read("queue", queue))
            group.create_task(self._read("checkpoint", checkpoint))
            while not self.over:
                began = self._loop.time()
                await producer.send_many([b"%d" % self.sent] * len(KEYS), keys=KEYS)
                self.slowest_send_s = max(self.slowest_send_s, self._loop.time() - began)
                self.sent += 1
                await asyncio.sleep(0.05)
        await self._client.close()

    async def _read(self, name: str, consumer: Any) -> None:
        last = self._loop.time()
        while True:
            messages = await consumer.receive_many(100, timeout=20.0)
            if not messages and self.over:
                return
            self.longest_silence_s[name] = max(self.longest_silence_s[name], self._loop.time() - last)
            last = self._loop.time()
            for message in messages:
                self.seen[name][message.key].append(int(message.value))
                if name == "queue":
                    await consumer.acknowledge(message)
            if name == "stream":
                await consumer.acknowledge_cumulative(messages[-1])


async def two_brokers(loop: SimLoop) -> Cluster:
    config = BrokerConfig(workers=2, auto_scale=AutoScalePolicy(enabled=False), lease_s=LEASE_S)
    cluster = Cluster(loop, config=config)
    loop.create_task(cluster.keep_up())
    for host in cluster.hosts:
        await host.up.wait()
    await asyncio.sleep(2)
    return cluster


def strike(cluster: Cluster, what: str, victim: Host) -> None:
    if what == "kill":
        cluster.kill_broker(victim)
    else:
        cluster.pause_broker(victim, 60.0)


@pytest.mark.parametrize("what", ["kill", "pause"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.virtual_time(limit_s=300)
async def test_clients_follow_segments_from_broker_to_broker(loop: SimLoop, seed: int, what: str) -> None:
    cluster = await two_brokers(loop)
    cluster.restart_delay_s = (15.0, 15.0)
    await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, 4))
    process = SimProcess(loop, "client")
    traffic = OwnedTraffic(loop, cluster.client(process))
    work = process.spawn(traffic.run())
    await asyncio.sleep(3)
    strike(cluster, what, cluster.hosts[seed % 2])
    # Time for the takeover, the restart of the broker, and the return of its stores.
    await asyncio.sleep(45)
    traffic.over = True
    await work
    for name, seen in traffic.seen.items():
        for key in KEYS:
            numbers = sorted(set(seen[key])) if name == "queue" else seen[key]
            assert numbers == list(range(traffic.sent)), f"{name}, {key}"
    assert traffic.slowest_send_s < TAKEOVER_S
    assert max(traffic.longest_silence_s.values()) < TAKEOVER_S, traffic.longest_silence_s


@pytest.mark.parametrize("what", ["kill", "pause"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.virtual_time(limit_s=600)
async def test_a_checkpoint_group_keeps_its_order_while_brokers_and_segments_come_and_go(
    loop: SimLoop, seed: int, what: str
) -> None:
    """Two members that read at random times, so that one often waits for the other."""
    cluster = await two_brokers(loop)
    await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, 2))
    process = SimProcess(loop, "client")
    seen: dict[str, list[int]] = defaultdict(list)
    over = asyncio.Event()

    async def produce() -> int:
        async with cluster.client(process) as client:
            producer = await client.create_producer(str(TOPIC))
            number = 0
            while not over.is_set():
                await producer.send_many([b"%d" % number] * len(KEYS), keys=KEYS)
                number += 1
                await asyncio.sleep(0.1)
            return number

    async def consume() -> None:
        client = cluster.client(process)
        members = [
            await client.create_checkpoint_consumer(
                str(TOPIC), start=Checkpoint.earliest(), group="g", receiver_queue_size=50
            )
            for _ in range(2)
        ]
        idle = 0
        rng = loop.random("member")
        while idle < 6 or not over.is_set():
            member = members[idle % 2 if idle else rng.randrange(2)]
            messages = await member.receive_many(50, timeout=5.0 if over.is_set() else 0.3)
            idle = 0 if messages else idle + 1
            for message in messages:
                assert message.key is not None
                seen[message.key].append(int(message.data))
        await client.close()

    async def change() -> None:
        rng = loop.random("layouts")
        for step in range(6):
            await asyncio.sleep(rng.uniform(1.0, 4.0))
            if step == 3:
                strike(cluster, what, rng.choice(cluster.hosts))
            await layout_change(cluster, rng)
        await asyncio.sleep(15)
        over.set()

    producing = process.spawn(produce())
    consuming = process.spawn(consume())
    await change()
    sent = await producing
    await consuming
    for key in KEYS:
        # The other member reads a reassigned segment again from the start position of its assignment.
        assert list(dict.fromkeys(seen[key])) == list(range(sent)), key


async def layout_change(cluster: Cluster, rng: Random) -> None:
    """Split or merge a random segment as soon as the topic has a leader."""

    async def change(controller: TopicLeader) -> bool:
        record = await cluster.record(TOPIC)
        assert record is not None
        active = layout_of(record).active
        at = rng.randrange(len(active) - 1)
        if len(active) > 3:
            await controller.merge([active[at].id, active[at + 1].id])
        else:
            await controller.split(active[at].id)
        return True

    while True:
        try:
            async with asyncio.timeout(20):
                if await cluster.with_controller(TOPIC, change):
                    return
        except (AnabranchError, TimeoutError):
            await asyncio.sleep(0.5)
