"""Cumulative acknowledgement by a stream consumer, against a real broker on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import MessageId
from anabranch.errors import (
    ConsumerBusyError,
)
from simulation.harness.client_insides import sources_of
from tests.harness.cluster import TOPIC, Brokers, Orders, drain


async def test_unacknowledged_messages_come_again_after_closing(brokers: Brokers) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        messages = [await consumer.receive(timeout=1) for _ in range(10)]
        await consumer.acknowledge_cumulative(messages[3])
        await consumer.close()
        again = await client.subscribe_stream(TOPIC, "s")
        assert [m.value for m in await drain(again)] == [b"%d" % n for n in range(4, 10)]


async def test_an_acknowledgement_covers_earlier_messages_of_every_segment(brokers: Brokers) -> None:
    await brokers.publish(20, 1)
    await (await brokers.controller()).split(0)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await drain(consumer)
        await brokers.publish(20, 2, first=1)
        handed_out = [await consumer.receive(timeout=1) for _ in range(25)]
        assert len({message.id.segment for message in handed_out}) == 2
        await consumer.acknowledge_cumulative(handed_out[-1])
        await consumer.close()
        again = await client.subscribe_stream(TOPIC, "s")
        left = await drain(again)
        assert len(left) == 15
        seen = {(m.key, m.value) for m in handed_out}
        assert not seen & {(m.key, m.value) for m in left}


async def test_an_id_kept_as_bytes_acknowledges_the_same(brokers: Brokers) -> None:
    await brokers.publish(20, 1)
    await (await brokers.controller()).split(0)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        await drain(consumer)
        await brokers.publish(20, 2, first=1)
        handed_out = [await consumer.receive(timeout=1) for _ in range(30)]
        kept = handed_out[24].id.to_bytes()
        await consumer.acknowledge_cumulative(MessageId.from_bytes(kept))
        await consumer.close()
        again = await client.subscribe_stream(TOPIC, "s")
        left = {(m.key, m.value) for m in await drain(again)}
        assert left.isdisjoint((m.key, m.value) for m in handed_out[:25])
        assert left.issuperset((m.key, m.value) for m in handed_out[25:])
        assert len(left) == 15


async def test_with_receipts_an_acknowledgement_is_durable_when_it_returns(brokers: Brokers) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", ack_receipts=True, ack_group_time=100.0
        )
        messages = await consumer.receive_many(10, timeout=1)
        await consumer.acknowledge_cumulative(messages[-1])
        brokers.kill()
        await brokers.start()
    async with brokers.client() as client:
        again = await client.subscribe_stream(TOPIC, "s", name="other")
        assert await again.receive_many(10, timeout=2) == []


async def test_acknowledgements_are_grouped_but_not_when_all_is_read(brokers: Brokers) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest", ack_group_time=5.0)
        for _ in range(9):
            await consumer.acknowledge_cumulative(await consumer.receive(timeout=1))
        await asyncio.sleep(1.0)
        (source,) = sources_of(consumer).values()
        assert source.outstanding, "acknowledgements wait while there is more to read"
        await consumer.acknowledge_cumulative(await consumer.receive(timeout=1))
        await asyncio.sleep(0.1)
        assert not source.outstanding
        assert source.acks.confirmed


async def test_a_killed_broker_gets_the_newest_of_several_unanswered_acknowledgements(
    brokers: Brokers,
) -> None:
    await brokers.publish(1, 40)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest", ack_group_time=0)
        orders = Orders()
        while orders.total < 30:
            messages = await consumer.receive_many(10, timeout=5)
            orders.take(messages)
            # The held links keep each acknowledgement unanswered until the broker dies.
            brokers.hold_links()
            await consumer.acknowledge_cumulative(messages[-1])
            await asyncio.sleep(0.001)
        brokers.kill()
        brokers.open_links()
        await brokers.start()
        await consumer.flush_acks()
        orders.take(await drain(consumer))
        orders.check(1, 40)


async def test_an_acknowledgement_of_a_segment_given_up_is_reported_as_not_confirmed(
    brokers: Brokers,
) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        messages = await consumer.receive_many(4, timeout=5)
        brokers.hold_links()
        await consumer.acknowledge_cumulative(messages[1])
        flushing = asyncio.ensure_future(consumer.flush_acks())
        await asyncio.sleep(0.1)
        (source,) = sources_of(consumer).values()
        source.give_up(ConsumerBusyError("in use"))
        with pytest.raises(ConsumerBusyError, match="not confirmed"):
            await flushing
        await consumer.flush_acks()
        brokers.open_links()


async def test_acknowledged_entries_are_not_kept_until_their_group_is_sent(brokers: Brokers) -> None:
    await brokers.publish(1, 10)
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", ack_group_time=100.0
        )
        while (message := await consumer.receive(timeout=1)).value != b"9":
            await consumer.acknowledge_cumulative(message)
            await asyncio.sleep(0.1)
        (source,) = sources_of(consumer).values()
        assert len(source.outstanding) == 1
        # Acknowledgements that no command has carried yet hold on the next connection.
        brokers.reset_links()
        await brokers.publish(1, 1, first=10)
        assert [message.value for message in await consumer.receive_many(10, timeout=5)] == [b"10"]


async def test_an_entry_is_kept_until_its_last_message_is_acknowledged(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        for first in (0, 3):
            await producer.send_many([b"%d" % n for n in range(first, first + 3)], keys=["k"] * 3)
        consumer = await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", ack_group_time=100.0
        )
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        assert len({message.id.entry for message in messages}) == 1
        await consumer.acknowledge_cumulative(messages[1])
        await consumer.receive(timeout=1)
        await consumer.close()
        again = await client.subscribe_stream(TOPIC, "s")
        assert [message.value for message in await drain(again)] == [b"2", b"3", b"4", b"5"]
