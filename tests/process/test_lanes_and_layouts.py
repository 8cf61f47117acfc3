"""Split, merge, rebucket and kill a real broker while keys of a hanging consumer wait in lanes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from anabranch import AsyncClient, Batching, Message
from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName
from tests.process.conftest import MakeBroker

NAME = TopicName.parse("topic://public/default/orders")
TOPIC = str(NAME)
KEYS = [f"key-{number}" for number in range(40)]
PATIENCE_S = 60.0
CHANGES: tuple[Callable[[AdminClient], None], ...] = (
    lambda admin: admin.split(NAME, 0),
    lambda admin: admin.rebucket(NAME, 1, bucket_count=8),
    lambda admin: admin.merge(NAME, (2, 3)),
)


class Shift:
    """One consumer of a queue in key order, and the first deliveries of all consumers by key."""

    def __init__(self, consumer: Any, received: dict[str, list[int]]) -> None:
        self.consumer = consumer
        self.received = received
        self.working = asyncio.Event()

    async def work(self) -> None:
        """Take and acknowledge messages while `working` is set."""
        while True:
            await self.working.wait()
            messages: list[Message[bytes]] = await self.consumer.receive_many(50, timeout=0.2)
            for message in messages:
                number = int(message.data)
                seen = self.received[message.key or ""]
                if number not in seen:
                    seen.append(number)
            await self.consumer.acknowledge(messages)


async def test_lanes_survive_layout_changes_and_a_kill(make_broker: MakeBroker) -> None:
    broker = make_broker(port=0).start()
    received: dict[str, list[int]] = defaultdict(list)
    sent = 0

    async def publish(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            for key in KEYS:
                await producer.enqueue(b"%d" % sent, key=key)
            sent += 1
        await producer.flush()

    async def until(wanted: int) -> None:
        """Wait until at least this many keys have all messages."""
        while sum(received[key] == list(range(sent)) for key in KEYS) < wanted:
            assert all(seen == list(range(len(seen))) for seen in received.values()), received
            await asyncio.sleep(0.05)

    def change(step: Callable[[AdminClient], None]) -> None:
        with AdminClient(broker.http_url) as admin:
            step(admin)

    async with asyncio.timeout(PATIENCE_S), AsyncClient(broker.url) as client, asyncio.TaskGroup() as tasks:
        options: dict[str, Any] = {"order": "key", "initial_position": "earliest", "receiver_queue_size": 20}
        shifts = [Shift(await client.subscribe_queue(TOPIC, "s", **options), received) for _ in range(2)]
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=1))
        working = [tasks.create_task(shift.work()) for shift in shifts]
        for shift in shifts:
            shift.working.set()
        await publish(5)
        await until(len(KEYS))
        shifts[0].working.clear()
        for step in CHANGES:
            await publish(50)
            await until(1)
            await asyncio.to_thread(change, step)
        await publish(50)
        broker.kill()
        await asyncio.to_thread(broker.start)
        await publish(5)
        waiting = sum(len(received[key]) < sent for key in KEYS)
        assert waiting, "no key waits for the consumer that hangs"
        shifts[0].working.set()
        await until(len(KEYS))
        for task in working:
            task.cancel()
