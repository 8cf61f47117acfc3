"""A producer repeats messages while segments are sealed; each message is stored once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from anabranch import AsyncClient, Batching
from anabranch.broker.wire.handlers import attach, produce
from anabranch.controller.lifecycle import Migration
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import NotAllowedError
from anabranch.model.hashing import key_hash
from anabranch.model.names import Place, TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import SETTLE
from simulation.world.transport import Mode
from tests.harness.cluster import TOPIC, Brokers, stored_messages

FIRST = "segment://public/default/orders/0000-ffff-0"
LOW = next(f"k{n}" for n in range(100) if key_hash(f"k{n}") >> 16 < 0x8000)
HIGH = next(f"k{n}" for n in range(100) if key_hash(f"k{n}") >> 16 >= 0x8000)


async def send(client: AsyncClient, numbers: Mapping[int, str | None]) -> None:
    """Send messages named by their sequence ids from a producer that exists for this call only."""
    producer = await client.create_producer(TOPIC, name="p")
    for number, key in numbers.items():
        await producer.enqueue(b"%d" % number, key=key, sequence_id=number)
    await producer.flush()
    await producer.close()


async def begin(brokers: Brokers, client: AsyncClient) -> TopicController:
    """Make the topic, and return its leader."""
    producer = await client.create_producer(TOPIC)
    await producer.close()
    return await brokers.controller()


async def check_once(client: AsyncClient, numbers: set[int]) -> None:
    """Check that exactly these messages are stored, each once."""
    found = Counter(int(message.data) for message in await stored_messages(client, len(numbers)))
    assert found == Counter(numbers)


def keyed(count: int) -> dict[int, str | None]:
    return {number: f"key-{number % 7}" for number in range(count)}


@pytest.mark.parametrize("with_keys", [True, False])
async def test_old_ids_sent_again_after_a_split_are_stored_once(brokers: Brokers, with_keys: bool) -> None:
    async with brokers.client() as client:
        numbers = keyed(20) if with_keys else dict.fromkeys(range(20))
        await send(client, numbers)
        await (await brokers.controller()).split(0)
        await send(client, numbers)
        await send(client, {**numbers, 20: "new", 21: None})
        await check_once(client, set(range(22)))


@pytest.mark.parametrize("with_keys", [True, False])
async def test_old_ids_sent_again_after_a_merge_are_stored_once(brokers: Brokers, with_keys: bool) -> None:
    async with brokers.client() as client:
        numbers = keyed(20) if with_keys else dict.fromkeys(range(20))
        controller = await begin(brokers, client)
        layout = await controller.split(0)
        await send(client, numbers)
        await controller.merge([segment.id for segment in layout.active])
        await send(client, numbers)
        await check_once(client, set(range(20)))


async def test_a_merge_of_a_parent_that_the_producer_never_wrote_to_loses_nothing(brokers: Brokers) -> None:
    async with brokers.client() as client:
        controller = await begin(brokers, client)
        layout = await controller.split(0)
        await send(client, dict.fromkeys(range(5, 10), LOW))
        await controller.merge([segment.id for segment in layout.active])
        await send(client, {2: HIGH, 3: HIGH, **dict.fromkeys(range(5, 10), LOW), 10: HIGH})
        await check_once(client, {2, 3, *range(5, 11)})


async def test_parents_whose_last_ids_differ_are_told_apart(brokers: Brokers) -> None:
    """A message that one parent lost has a lower number than the other one stored, but is not a duplicate."""

    async with brokers.client() as client:
        controller = await begin(brokers, client)
        layout = await controller.split(0)
        await send(client, {0: HIGH, 1: LOW, 2: HIGH, 8: LOW, 10: LOW})
        await controller.merge([segment.id for segment in layout.active])
        again = {0: HIGH, 1: LOW, 2: HIGH, 5: HIGH, 8: LOW, 9: HIGH, 10: LOW, 11: HIGH}
        await send(client, again)
        await send(client, again)
        await check_once(client, set(again))


@pytest.mark.parametrize("with_keys", [True, False])
async def test_two_generations_and_a_restart_later_each_is_stored_once(
    brokers: Brokers, with_keys: bool
) -> None:
    async with brokers.client() as client:
        numbers = keyed(30) if with_keys else dict.fromkeys(range(30))
        early = {number: numbers[number] for number in range(20)}
        await send(client, early)
        controller = await brokers.controller()
        layout = await controller.split(0)
        await send(client, numbers)
        await controller.merge([segment.id for segment in layout.active])
        brokers.kill()
        await brokers.start()
        await (await brokers.controller()).split(3, [0x3000, 0x9000])
        await send(client, early)
        await send(client, numbers)
        await check_once(client, set(range(30)))


@pytest.mark.parametrize("with_keys", [True, False])
async def test_a_run_that_begins_before_what_is_stored_is_stored_once(
    brokers: Brokers, with_keys: bool
) -> None:
    """A batch across the last known id would mix old messages with new ones."""

    async with brokers.client() as client:
        controller = await begin(brokers, client)
        layout = await controller.split(0)
        keys = [f"key-{n % 7}" if with_keys else None for n in range(100)]
        values = [b"%d" % n for n in range(100)]
        for end in (30, 60):
            producer = await client.create_producer(TOPIC, name="p", initial_sequence_id=-1)
            await producer.send_many(values[:end], keys[:end])
            await producer.close()
        await controller.merge([segment.id for segment in layout.active])
        producer = await client.create_producer(
            TOPIC, name="p", initial_sequence_id=-1, batching=Batching(max_messages=1000)
        )
        assert producer.last_sequence_id == -1
        await producer.send_many(values[:50], keys[:50])
        for n in range(50, 100):
            await producer.enqueue(values[n], key=keys[n])
        await producer.flush()
        assert producer.last_sequence_id == 99
        await producer.close()
        await check_once(client, set(range(100)))


async def test_inherited_sequence_ids_of_a_merged_segment_are_not_its_own(brokers: Brokers) -> None:
    """After a lost connection a producer counts only the ids that the segment itself has stored."""

    async with brokers.client() as client:
        controller = await begin(brokers, client)
        layout = await controller.split(0)
        await send(client, {0: HIGH, 10: LOW})
        await controller.merge([segment.id for segment in layout.active])
        producer = await client.create_producer(TOPIC, name="p")
        # The message is on its way when the connection breaks, and is never stored.
        for link in brokers.network.links():
            brokers.network.set_mode(link, Mode.BLACK_HOLE)
        sending = await producer.enqueue(b"5", key=HIGH, sequence_id=5)
        await asyncio.sleep(0.5)
        brokers.reset_links()
        brokers.open_links()
        await sending
        await check_once(client, {0, 5, 10})


async def test_the_successors_of_a_vanished_segment_answer_for_it(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to a seal are lost, and the parent does not answer any more."""

    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"0", key="k")
        refused = 0

        def refuse(metadata: Iterable[pb.KeyValue]) -> dict[str, str]:
            nonlocal refused
            found = attach.metadata_of(metadata)
            if found.get(SETTLE) == "true":
                refused += 1
                raise NotAllowedError("it is gone")
            return found

        monkeypatch.setattr(produce, "metadata_of", refuse)
        swallow_receipts(monkeypatch)
        sending = [await producer.enqueue(b"%d" % n, key=None if n % 3 else f"key-{n}") for n in range(1, 40)]
        await asyncio.sleep(0.5)
        monkeypatch.undo()
        monkeypatch.setattr(produce, "metadata_of", refuse)
        more = [await producer.enqueue(b"%d" % n, key=f"key-{n}") for n in range(40, 50)]
        brokers.hold_links()
        splitting = asyncio.ensure_future((await brokers.controller()).split(0))
        await asyncio.sleep(0.5)
        brokers.reset_links()
        brokers.open_links()
        await splitting
        for outcome in [*sending, *more]:
            await outcome
        assert refused
        await check_once(client, set(range(50)))


def swallow_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker stores, but no answer to a send leaves it."""
    monkeypatch.setattr("anabranch.broker.serving.log.producer.encode_receipt", lambda *args: b"")


@pytest.mark.parametrize("seed", range(6))
async def test_each_number_is_stored_once_through_layout_changes(brokers: Brokers, seed: int) -> None:
    """A sender dies repeatedly, and each time starts again at one of the messages it had sent."""

    rng = brokers.rng
    async with brokers.client() as client:
        await begin(brokers, client)
        done = -1
        for _ in range(12):
            start = rng.randrange(max(done - 20, 0), done + 2)
            end = start + rng.randrange(1, 30)
            style = rng.random()
            producer = await client.create_producer(
                TOPIC, name="p", initial_sequence_id=start - 1 if style < 0.4 else None
            )
            sending = []
            for n in range(start, end):
                given = None if style < 0.4 else n
                key = None if n % 4 == 0 else f"key-{n % 9}"
                sending.append(await producer.enqueue(b"%d" % n, key=key, sequence_id=given))
                if rng.random() < 0.03:
                    brokers.reset_links()
                if rng.random() < 0.02:
                    brokers.kill()
                    await brokers.start()
                if rng.random() < 0.05:
                    await brokers.change_layout(rng)
            for outcome in sending:
                await outcome
            done = max(done, end - 1)
            await producer.close()
            if rng.random() < 0.3:
                brokers.kill()
                await brokers.start()
            for _ in range(rng.randrange(3)):
                await brokers.change_layout(rng)
        await check_once(client, set(range(done + 1)))


async def test_a_producer_that_opens_within_a_split_counts_on_from_what_is_stored(brokers: Brokers) -> None:
    """The producer's segment is sealed already and its successors are not visible yet."""

    async with brokers.client() as client:
        await send(client, keyed(10))
        await brokers[0].logs.require(TopicName.parse(FIRST)).seal()
        opening = asyncio.ensure_future(client.create_producer(TOPIC, name="p"))
        await asyncio.sleep(2.5)
        assert not opening.done()
        await (await brokers.controller()).split(0)
        producer = await opening
        assert producer.last_sequence_id == 9
        await producer.send_many([b"10", b"11"], ["a", "b"])
        await check_once(client, set(range(12)))


async def test_a_classic_topic_hands_on_what_it_stored_when_it_becomes_scalable(brokers: Brokers) -> None:
    async with brokers.client() as client:
        classic = TOPIC.replace("topic://", "persistent://")
        producer = await client.create_producer(classic, name="p")
        for number, key in keyed(10).items():
            await producer.enqueue(b"%d" % number, key=key, sequence_id=number)
        await producer.flush()
        await producer.close()
        name, former = TopicName.parse(TOPIC), TopicName.parse(classic)
        await brokers[0].classic.mark_migrated(former)
        await brokers[0].controllers.record_migration(name, Migration([Place(former, 0)], {}, {}))
        await (await brokers.controller()).split(1)
        await send(client, keyed(12))
        await check_once(client, set(range(12)))
