"""Buckets with real brokers: a stuck key in a sealed parent, and a checkpoint group that shares a segment."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from anabranch import AsyncCheckpointConsumer, AsyncClient, Checkpoint
from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName

from .conftest import MakeBroker

TOPIC = TopicName.parse("topic://public/default/orders")
HELD = 101_000
"""Pending entries of the stuck key: more than the broker counted by bucket before."""


async def test_a_stuck_key_in_a_sealed_parent_does_not_delay_other_buckets_of_the_children(
    make_broker: MakeBroker,
) -> None:
    settings = {"auto_scale.enabled": "false", "bucket_budget": 4}
    with make_broker(**settings) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 1)
        async with AsyncClient(process.url) as client, AsyncClient(process.url) as other:
            stuck = await client.subscribe_stream(str(TOPIC), "s", name="a", receiver_queue_size=10)
            going = await other.subscribe_stream(str(TOPIC), "s", name="b", ack_group_time=0.01)
            async with await client.create_producer(str(TOPIC)) as producer:
                await producer.send_many([b"0"] * 40, keys=[f"key-{n}" for n in range(40)])
            hot = (await stuck.receive(timeout=10)).key
            async with await client.create_producer(str(TOPIC), batching=False) as producer:
                for _ in range(HELD // 1000):
                    await producer.send_many([b"1"] * 1000, keys=[hot or ""] * 1000)
            first = await going.receive_many(40, timeout=10)
            while more := await going.receive_many(40, timeout=0.5):
                first += more
            mine = {message.key for message in first}
            assert hot not in mine
            await going.acknowledge_cumulative(first[-1])
            await asyncio.to_thread(admin.split, TOPIC, 0)
            async with await client.create_producer(str(TOPIC)) as producer:
                await producer.send_many([b"2"] * 40, keys=[f"key-{n}" for n in range(40)])
            # Both consumers read one child each; the stuck one does not take its messages.
            seen = [await going.receive(timeout=30)]
            seen += await going.receive_many(40, timeout=1)
            assert {message.value for message in seen} == {b"2"}
            assert {message.key for message in seen} <= mine
            assert {message.id.segment for message in seen} <= {1, 2}


class CommittedEffects:
    """The messages of committed checkpoints, by key."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)

    async def work(self, consumer: AsyncCheckpointConsumer[bytes]) -> int:
        """Receive, and count the messages when their checkpoint is committed."""
        found = await consumer.receive_many(200, timeout=0.5)
        await consumer.commit()
        for message in found:
            self.numbers[message.key or ""].append(int(message.data))
        return len(found)


async def test_a_checkpoint_group_shares_a_segment_and_survives_its_members_and_its_broker(
    make_broker: MakeBroker,
) -> None:
    settings = {"auto_scale.enabled": "false", "bucket_budget": 4}
    with make_broker(**settings) as process, AdminClient(process.http_url) as admin:
        admin.create_topic(TOPIC, 1)
        keys, effects = [f"key-{n}" for n in range(60)], CommittedEffects()

        async def member(client: AsyncClient, name: str) -> AsyncCheckpointConsumer[bytes]:
            start = Checkpoint.earliest()
            return await client.create_checkpoint_consumer(str(TOPIC), start=start, group="g", name=name)

        async with AsyncClient(process.url) as one, AsyncClient(process.url) as two:
            producer = await one.create_producer(str(TOPIC))
            members = [await member(one, "a"), await member(two, "b")]
            for number in range(4):
                await producer.send_many([b"%d" % number] * 60, keys=keys)
            for _ in range(6):
                counts = [await effects.work(consumer) for consumer in members]
            await producer.send_many([b"4"] * 60, keys=keys)
            counts = [await effects.work(consumer) for consumer in members]
            assert all(counts), "each member reads some buckets"
            process.kill()
            process.start()
            await members[1].receive_many(200, timeout=1)  # These messages are not committed.
            await producer.send_many([b"5"] * 60, keys=keys)
            await members[1].close()
            await asyncio.to_thread(admin.split, TOPIC, 0)
            await producer.send_many([b"6"] * 60, keys=keys)
            async with asyncio.timeout(30):
                while sum(map(len, effects.numbers.values())) < 7 * 60:
                    await effects.work(members[0])
        assert dict(effects.numbers) == {key: list(range(7)) for key in keys}
