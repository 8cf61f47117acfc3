"""Runs of several consumers while brokers die, segments split and merge, and consumers come and go."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

from anabranch import AsyncClient, Backoff, Batching, Message
from anabranch.errors import AnabranchError
from tests.harness.cluster import TOPIC, Brokers

KEYS, PER_KEY = 12, 60


class Churn:
    """Handlers that fail at random, and the order in which they finished the messages of each key."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.finished: dict[str | None, list[int]] = defaultdict(list)
        self.running: dict[str | None, int] = {}
        self.faults: list[str] = []
        self.done = asyncio.Event()

    async def __call__(self, message: Message[bytes]) -> None:
        key, number = message.key, int(message.data)
        if key in self.running:
            self.faults.append(f"{key}: {number} runs beside {self.running[key]}")
        self.running[key] = number
        try:
            await asyncio.sleep(self.rng.random() * 0.2)
            if self.rng.random() < 0.1:
                raise ValueError("at random")
            finished = self.finished[key]
            if number != len({*finished}) and number not in finished:
                self.faults.append(f"{key}: {number} after {finished[-1:]}")
            finished.append(number)
            if sum(len({*numbers}) for numbers in self.finished.values()) == KEYS * PER_KEY:
                self.done.set()
        finally:
            self.running.pop(key, None)


async def produce(client: AsyncClient) -> None:
    producer = await client.create_producer(TOPIC, batching=Batching(max_messages=7))
    for number in range(PER_KEY):
        for key in range(KEYS):
            await producer.enqueue(b"%d" % number, key=f"key-{key}")
        await asyncio.sleep(0.5)
    await producer.flush()


async def consume(client: AsyncClient, kind: str, churn: Churn, leaves_after_s: float | None) -> None:
    options: dict[str, Any] = {"initial_position": "earliest"}
    consumer: Any
    if kind == "stream":
        consumer = await client.subscribe_stream(TOPIC, "s", **options)
    else:
        consumer = await client.subscribe_queue(TOPIC, "s", order="key", **options)
    stop = churn.done if leaves_after_s is None else leaves_after_s
    await consumer.run(churn, concurrency=8, retry=Backoff(0.1, 1), stop=stop)
    await consumer.close()


async def disturb(brokers: Brokers, rng: random.Random) -> None:
    for _ in range(6):
        await asyncio.sleep(1 + 4 * rng.random())
        with suppress(AnabranchError):
            controller = await brokers.controller()
            active = [segment.id for segment in controller.layout.active]
            if len(active) > 2:
                await controller.merge(active[:2])
            else:
                await controller.split(rng.choice(active))
        if rng.random() < 0.5:
            brokers.kill()
            await asyncio.sleep(rng.random())
            await brokers.start()


@pytest.mark.parametrize("kind", ["stream", "queue"])
@pytest.mark.parametrize("seed", range(2))
async def test_each_key_is_handled_in_order(brokers: Brokers, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    churn = Churn(rng)
    async with brokers.client() as client, asyncio.timeout(600):
        work = [consume(client, kind, churn, None), disturb(brokers, rng), produce(client)]

        async def come_and_go() -> None:
            for _ in range(4):
                await asyncio.sleep(4 * rng.random())
                await consume(client, kind, churn, 1 + 5 * rng.random())

        await asyncio.gather(*work, come_and_go(), come_and_go())
    assert churn.faults == []
    assert all({*numbers} == {*range(PER_KEY)} for numbers in churn.finished.values())
