"""Entries that cannot be decoded: consumers pass over them as their policy says, and read on."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch import AsyncClient, Checkpoint, DeadLetter
from anabranch.errors import BadEntryError, InvalidConfigurationError
from anabranch.protocol.frames import build_entry
from simulation.world.lies import COUNTS, HIDDEN, UNREADABLE, Lie
from tests.harness.cluster import TOPIC, Brokers
from tests.harness.lies import store

Open = Callable[..., Awaitable[Any]]
GARBAGE = HIDDEN[2]


def stream(client: AsyncClient, **options: Any) -> Awaitable[Any]:
    return client.subscribe_stream(TOPIC, "s", initial_position="earliest", name="me", **options)


def queue(client: AsyncClient, **options: Any) -> Awaitable[Any]:
    return client.subscribe_queue(TOPIC, "q", initial_position="earliest", **options)


def checkpoint(client: AsyncClient, **options: Any) -> Awaitable[Any]:
    start = options.pop("start", Checkpoint.earliest())
    return client.create_checkpoint_consumer(TOPIC, start=start, **options)


ALL = pytest.mark.parametrize("consumer_kind", [stream, queue, checkpoint])


async def acknowledge(consumer: Any, messages: list[Any]) -> None:
    if hasattr(consumer, "acknowledge"):
        await consumer.acknowledge(messages)
    elif hasattr(consumer, "acknowledge_cumulative") and messages:
        await consumer.acknowledge_cumulative(messages[-1])


async def values(consumer: Any, timeout: float = 2.0) -> list[bytes]:
    """Receive and acknowledge until no message arrives."""
    found: list[bytes] = []
    while messages := await consumer.receive_many(100, timeout=timeout):
        found += [message.value for message in messages]
        await acknowledge(consumer, messages)
    return found


async def bad_entry(consumer: Any) -> BadEntryError:
    """Receive and acknowledge up to the first error."""
    while True:
        try:
            await acknowledge(consumer, [await consumer.receive(timeout=1)])
        except BadEntryError as error:
            return error


async def publish(brokers: Brokers, *numbers: int) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        for number in numbers:
            await producer.send(b"%d" % number, key="k")


async def publish_with_lies(brokers: Brokers, *lies: Lie, count: int = 1) -> None:
    """Store the numbers 1 and 2, the lies, and the number 3."""
    await publish(brokers, 1, 2)
    for lie in lies:
        await store(brokers, lie, count=count)
    await publish(brokers, 3)


@ALL
async def test_every_kind_of_lie_is_skipped_and_counted(
    brokers: Brokers, consumer_kind: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "anabranch.client")
    await publish_with_lies(brokers, *UNREADABLE)
    async with brokers.client() as client:
        consumer = await consumer_kind(client, receiver_queue_size=4)
        assert await values(consumer) == [b"1", b"2", b"3"]
        assert consumer.bad_entry_count == len(UNREADABLE)
    told = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(told) == len(set(told)) == len(UNREADABLE)
    assert all(text.startswith(f"{TOPIC}: the entry at 0/") for text in told)


@pytest.mark.parametrize("consumer_kind", [stream, queue])
async def test_skipped_entries_are_acknowledged(brokers: Brokers, consumer_kind: Open) -> None:
    await publish_with_lies(brokers, *UNREADABLE)
    async with brokers.client() as client:
        consumer = await consumer_kind(client)
        await values(consumer)
        await consumer.close()
        again = await consumer_kind(client)
        assert await values(again) == []
        assert again.bad_entry_count == 0


@ALL
async def test_a_lying_count_takes_no_memory(brokers: Brokers, consumer_kind: Open) -> None:
    await publish_with_lies(brokers, *COUNTS[:7])
    async with brokers.client() as client:
        tracemalloc.start()
        try:
            consumer = await consumer_kind(client)
            assert await values(consumer) == [b"1", b"2", b"3"]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 5_000_000


@ALL
async def test_a_sealed_segment_that_ends_with_a_bad_entry_drains(
    brokers: Brokers, consumer_kind: Open
) -> None:
    await publish(brokers, 1, 2)
    await store(brokers, GARBAGE, count=3)
    async with brokers.client() as client:
        consumer = await consumer_kind(client)
        await (await brokers.controller()).split(0)
        await publish(brokers, 3, 4)
        assert sorted(await values(consumer)) == [b"1", b"2", b"3", b"4"]


@ALL
async def test_a_bad_entry_at_the_end_that_comes_late_is_noticed(
    brokers: Brokers, consumer_kind: Open
) -> None:
    await publish(brokers, 1)
    await store(brokers, GARBAGE, count=3)
    await (await brokers.controller()).split(0)
    await publish(brokers, 2)
    async with brokers.client() as client:
        consumer = await consumer_kind(client, receiver_queue_size=1)
        await asyncio.sleep(1)
        assert sorted(await values(consumer)) == [b"1", b"2"]


@ALL
async def test_a_log_that_counted_more_messages_than_an_entry_holds_lost_none(
    brokers: Brokers, consumer_kind: Open
) -> None:
    await publish(brokers, 1)
    for _ in range(3):
        await store(brokers, COUNTS[7], count=1000)
    await publish(brokers, 2)
    async with brokers.client() as client:
        consumer = await consumer_kind(client)
        assert await values(consumer) == [b"1", *[b"value 0", b"value 1", b"value 2"] * 3, b"2"]
        assert consumer.bad_entry_count == 0


async def test_messages_before_a_skipped_entry_are_not_acknowledged_with_it(brokers: Brokers) -> None:
    await publish_with_lies(brokers, GARBAGE)
    async with brokers.client() as client:
        consumer = await stream(client)
        assert len(await consumer.receive_many(10, timeout=1)) == 3
        assert consumer.bad_entry_count == 1
        await asyncio.sleep(1)
        await consumer.close()
        again = await stream(client)
        assert await values(again) == [b"1", b"2", b"3"]


async def test_a_skipped_entry_waits_for_no_message_that_the_broker_took_back(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await stream(client)
        await store(brokers, GARBAGE, count=3)
        await (await brokers.controller()).split(0)
        await publish(brokers, 1, 2)
        assert (await consumer.receive(timeout=2)).data == b"1"
        await consumer.seek("earliest")
        assert await values(consumer) == [b"1", b"2"]


async def test_a_skipped_entry_that_comes_again_is_counted_once(brokers: Brokers) -> None:
    await publish_with_lies(brokers, GARBAGE, count=3)
    async with brokers.client() as client:
        consumer = await stream(client)
        first = [await consumer.receive(timeout=1) for _ in range(3)]
        assert consumer.bad_entry_count == 1
        brokers.reset_links()
        await asyncio.sleep(3)
        assert await consumer.receive_many(10, timeout=1) == []
        assert consumer.bad_entry_count == 1
        await consumer.acknowledge_cumulative(first[-1])
        await consumer.flush_acks()


@ALL
async def test_a_policy_to_fail_raises_once_and_goes_on(brokers: Brokers, consumer_kind: Open) -> None:
    await publish_with_lies(brokers, GARBAGE, *COUNTS[:1])
    async with brokers.client() as client:
        consumer = await consumer_kind(client, bad_entries="fail")
        got: list[bytes] = []
        failures: list[BadEntryError] = []
        while len(got) < 3:
            try:
                got += [message.value for message in await consumer.receive_many(10, timeout=2)]
            except BadEntryError as error:
                failures.append(error)
        assert got == [b"1", b"2", b"3"]
        assert [(error.topic, error.message_id.segment, error.message_id.entry) for error in failures] == [
            (TOPIC, 0, 2),
            (TOPIC, 0, 3),
        ]
        assert await consumer.receive_many(10, timeout=1) == []


async def test_an_iteration_goes_on_behind_an_error(brokers: Brokers) -> None:
    await publish_with_lies(brokers, GARBAGE)
    async with brokers.client() as client:
        consumer = await stream(client, bad_entries="fail")
        assert (await anext(consumer)).value == b"1"
        assert (await anext(consumer)).value == b"2"
        with pytest.raises(BadEntryError):
            await anext(consumer)
        assert (await anext(consumer)).value == b"3"


async def test_waiting_receives_share_an_error_and_what_follows(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await queue(client, bad_entries="fail")
        waiting = [asyncio.ensure_future(consumer.receive(timeout=5)) for _ in range(2)]
        await asyncio.sleep(0.1)
        await store(brokers, GARBAGE)
        await publish(brokers, 1)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        kinds = sorted(type(result).__name__ for result in results)
        assert kinds == ["BadEntryError", "Message"]


async def test_an_entry_that_raised_stays_until_it_is_acknowledged(brokers: Brokers) -> None:
    await publish_with_lies(brokers, GARBAGE, count=3)
    async with brokers.client() as client:
        for acknowledged in (False, True):
            consumer = await queue(client, bad_entries="fail")
            error = await bad_entry(consumer)
            if acknowledged:
                await consumer.acknowledge(error.message_id)
            await values(consumer)
            await consumer.close()
        consumer = await queue(client, bad_entries="fail")
        assert await values(consumer) == []


async def test_a_checkpoint_after_an_error_lies_behind_the_entry(brokers: Brokers) -> None:
    await publish_with_lies(brokers, GARBAGE, count=3)
    async with brokers.client() as client:
        consumer = await checkpoint(client, bad_entries="fail")
        await bad_entry(consumer)
        kept = Checkpoint.from_bytes(consumer.checkpoint().to_bytes())
        again = await checkpoint(client, bad_entries="fail", start=kept)
        assert await values(again) == [b"3"]


async def test_a_bad_entry_goes_to_the_dead_letters_as_it_was_stored(brokers: Brokers) -> None:
    await publish_with_lies(brokers, GARBAGE, *COUNTS[:1])
    async with brokers.client() as client:
        letters = DeadLetter(3, initial_subscription="look")
        consumer = await queue(client, bad_entries="dead_letter", dead_letter=letters)
        assert await values(consumer) == [b"1", b"2", b"3"]
        dead = await client.subscribe_queue(f"{TOPIC}-DLQ", "look", initial_position="earliest")
        messages = [await dead.receive(timeout=5) for _ in range(2)]
        assert {message.value for message in messages} == {GARBAGE.entry(), COUNTS[0].entry()}
        assert messages[0].properties["BAD_ENTRY"] == "whole"
        assert messages[0].properties["REAL_TOPIC"] == TOPIC
        await consumer.close()
        again = await queue(client)
        assert await values(again) == []


@pytest.mark.brokers(max_message_bytes=30_000)
async def test_a_bad_entry_that_is_too_large_for_one_entry_becomes_a_whole_letter(brokers: Brokers) -> None:
    await publish(brokers, 1)
    large = build_entry(GARBAGE.entry()[10:34], b"?" * 29_900)
    await store(brokers, large)
    async with brokers.client() as client:
        letters = DeadLetter(3, initial_subscription="look")
        consumer = await queue(client, bad_entries="dead_letter", dead_letter=letters)
        assert await values(consumer) == [b"1"]
        dead = await client.subscribe_queue(f"{TOPIC}-DLQ", "look", initial_position="earliest")
        message = await dead.receive(timeout=5)
        assert message.properties["BAD_ENTRY"] == "whole"
        assert message.data == large


async def test_members_that_share_a_segment_pass_over_bad_entries_and_drain_it(brokers: Brokers) -> None:
    async with brokers.client() as client:
        members = [await client.subscribe_stream(TOPIC, "s", name=f"m{n}") for n in range(2)]
        await brokers.publish(8, 3)
        for lie in UNREADABLE:
            await store(brokers, lie)
        await brokers.publish(8, 3, first=3)
        await (await brokers.controller()).split(0)
        await brokers.publish(8, 3, first=6)
        found = await asyncio.gather(*(values(member, timeout=5.0) for member in members))
        assert sorted(int(value) for part in found for value in part) == sorted([*range(9)] * 8)
        assert sum(member.bad_entry_count for member in members) == len(UNREADABLE)


async def test_dead_letters_need_a_topic_and_policies_a_name(brokers: Brokers) -> None:
    async with brokers.client() as client:
        for open_, wrong in ((queue, "dead_letter"), (stream, "dead_letter"), (checkpoint, "ignore")):
            with pytest.raises(InvalidConfigurationError, match="bad_entries"):
                await open_(client, bad_entries=wrong)


@ALL
async def test_a_count_that_the_log_counted_otherwise_stops_no_reader(
    brokers: Brokers, consumer_kind: Open
) -> None:
    await publish(brokers, 1)
    for count in (100_000, 1, 1000, 100_000):
        for lie in UNREADABLE:
            await store(brokers, lie, count=count)
    await publish(brokers, 2)
    async with brokers.client() as client:
        consumer = await consumer_kind(client)
        assert await values(consumer) == [b"1", b"2"]
