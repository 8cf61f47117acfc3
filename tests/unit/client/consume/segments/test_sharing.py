"""Stream consumers that begin to share a segment by buckets, and stop sharing it again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from anabranch import AsyncClient, AsyncStreamConsumer, Batching, Message
from anabranch.errors import ConsumerBusyError
from anabranch.model.names import TopicName
from simulation.world.transport import Mode
from tests.harness.cluster import TOPIC, Brokers, drain

KEYS = [f"key-{n}" for n in range(30)]
TURN_S = 3.0


class SlowReader:
    """An application that receives at once and acknowledges after some work."""

    def __init__(self, consumer: AsyncStreamConsumer[bytes], seen: list[Message[bytes]]) -> None:
        self.consumer = consumer
        self._seen = seen
        self._stopping = False
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while not self._stopping:
            got = await self.consumer.receive_many(40, timeout=0.5)
            self._seen += got
            if got:
                await asyncio.sleep(0.3)
                await self.consumer.acknowledge_cumulative(got[-1])

    async def stop(self) -> None:
        """Acknowledge all received messages, then close the consumer."""
        self._stopping = True
        await self._task
        await self.consumer.close()


def check(seen: Sequence[Message[bytes]], rounds: int) -> None:
    """Check that the numbers of every key came in order and once."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for message in seen:
        assert message.key is not None
        by_key[message.key].append(int(message.data))
    assert sorted(by_key) == sorted(KEYS)
    for key, numbers in by_key.items():
        assert numbers == list(range(rounds)), f"{key}: {numbers}"


async def share(client: AsyncClient, names: str) -> dict[str, AsyncStreamConsumer[bytes]]:
    """Open consumers of these names, one after another."""
    consumers = {
        name: await client.subscribe_stream(TOPIC, "s", name=name, initial_position="earliest")
        for name in names
    }
    await asyncio.sleep(TURN_S)
    return consumers


async def test_acknowledgements_lost_when_sharing_ends_raise_and_messages_come_again(
    brokers: Brokers,
) -> None:
    async with brokers.client() as client:
        stays, leaves = (await share(client, "ab")).values()
        await brokers.publish(30, 1)
        held = await stays.receive_many(100, timeout=1.0)
        assert 0 < len(held) < 30
        await drain(leaves)
        await leaves.close()
        await asyncio.sleep(TURN_S)
        for link in brokers.network.links():
            brokers.network.set_mode(link, Mode.BLACK_HOLE)
        await stays.acknowledge_cumulative(held[-1])
        confirming = asyncio.ensure_future(stays.flush_acks())
        await asyncio.sleep(1.0)
        assert not confirming.done()
        brokers.reset_links()
        brokers.open_links()
        with pytest.raises(ConsumerBusyError, match="not confirmed"):
            await confirming
        again = await drain(stays)
        assert {message.id for message in again} == {message.id for message in held}


@pytest.mark.parametrize("again", [False, True], ids=["the-same-reader", "its-next-life"])
async def test_an_id_covers_no_message_of_a_segment_that_was_shared(brokers: Brokers, again: bool) -> None:
    await brokers[0].controllers.create_topic(TopicName.parse(TOPIC), 2)
    async with brokers.client() as client, brokers.client() as other:
        consumers = await share(client, "abc")
        readers: dict[str, list[str]] = defaultdict(list)
        for name, consumer in consumers.items():
            (segment,) = consumer.assignment
            readers[segment].append(name)
        (alone,), (dies, stays) = sorted(readers.values(), key=len)
        await brokers.publish(30, 1)
        lost = await consumers[dies].receive_many(100, timeout=1.0)
        await drain(consumers[stays])
        await consumers[alone].close()
        kept = await consumers[stays].receive_many(100, timeout=1.0)
        assert kept
        assert lost
        await consumers[dies].close()
        reader = consumers[stays]
        kept_id = kept[-1].id
        if again:
            await reader.close()
            reader = await other.subscribe_stream(TOPIC, "s", name=stays)
        await asyncio.sleep(TURN_S)
        await reader.receive_many(100, timeout=1.0)
        await reader.acknowledge_cumulative(kept_id)
        await reader.close()
        heir = await other.subscribe_stream(TOPIC, "s", name="heir")
        missing = {message.id for message in lost} - {message.id for message in await drain(heir)}
        assert not missing, "these messages were not acknowledged"


async def send(client: AsyncClient, rounds: int) -> None:
    producer = await client.create_producer(TOPIC)
    for number in range(rounds):
        await producer.send_many([b"%d" % number] * len(KEYS), keys=KEYS)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("seed", range(3))
async def test_order_holds_when_a_segment_is_shared_and_not_shared_three_times(
    brokers: Brokers, seed: int
) -> None:
    seen: list[Message[bytes]] = []
    async with brokers.client() as client:
        sending = asyncio.ensure_future(send(client, 50))
        stays = SlowReader(
            await client.subscribe_stream(TOPIC, "s", name="a", initial_position="earliest"), seen
        )
        await asyncio.sleep(TURN_S)
        for turn in range(3):
            # The same name each time, as of a process that is restarted.
            comes = SlowReader(await client.subscribe_stream(TOPIC, "s", name="b"), seen)
            await asyncio.sleep(TURN_S)
            assert comes.consumer.assignment, turn
            assert stays.consumer.assignment == comes.consumer.assignment, "they share the segment"
            await comes.stop()
            await asyncio.sleep(TURN_S)
        await sending
        await asyncio.sleep(60)
        await stays.stop()
    check(seen, 50)


async def test_messages_without_a_key_reach_all_consumers_of_a_shared_segment(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=5))
        await producer.send(b"first")
        consumers = [await client.subscribe_stream(TOPIC, "s", initial_position="earliest") for _ in range(4)]
        await asyncio.sleep(2)
        for _ in range(60):
            await producer.send_many([b"x"] * 5)
        # Two rounds: the first message may hold a bucket until its former consumer acknowledges.
        counts = [0] * len(consumers)
        for at, consumer in [*enumerate(consumers)] * 2:
            while got := await consumer.receive_many(1000, timeout=1.0):
                counts[at] += len(got)
                await consumer.acknowledge_cumulative(got[-1])
        assert sum(counts) == 301
        assert min(counts) > 20, counts
