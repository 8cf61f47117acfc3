"""One consumer of several topics, against a real broker on a virtual clock."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from anabranch import AsyncClient, AsyncTopicsConsumer, Backoff, DeadLetter
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError, ReceiveTimeoutError
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers

NAMES = [f"topic://public/default/orders-{n}" for n in range(3)]


async def publish(client: AsyncClient, topics: list[str], lo: int, hi: int) -> None:
    for topic in topics:
        async with await client.create_producer(topic) as producer:
            await producer.send_many([b"%d" % n for n in range(lo, hi)], keys=["k"] * (hi - lo))


async def take(consumer: AsyncTopicsConsumer[bytes], kind: str, timeout: float = 1.0) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while messages := await consumer.receive_many(7, timeout=timeout):
        for message in messages:
            found.setdefault(message.topic, []).append(int(message.data))
        if kind == "queue":
            await consumer.acknowledge(messages)
        else:
            await consumer.acknowledge_cumulative(messages[-1])
    return found


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_a_list_of_topics_is_read_through_splits_and_a_restart(brokers: Brokers, kind: Any) -> None:
    async with brokers.client() as client:
        await publish(client, NAMES, 0, 10)
        consumer = await client.subscribe_topics(NAMES, "s", kind=kind, initial_position="earliest")
        assert consumer.topics == tuple(NAMES)
        assert await take(consumer, kind) == {name: list(range(10)) for name in NAMES}
        await (await brokers.controller(NAMES[1])).split(0)
        await consumer.flush_acks()
        await brokers.restart()
        await publish(client, NAMES, 10, 20)
        assert await take(consumer, kind, timeout=5.0) == {name: list(range(10, 20)) for name in NAMES}
        await consumer.seek("earliest")
        found = await take(consumer, kind)
        assert {name: sorted(numbers) for name, numbers in found.items()} == {
            name: list(range(20)) for name in NAMES
        }
        await consumer.unsubscribe()
        with pytest.raises(AlreadyClosedError):
            await consumer.receive()


async def test_topics_of_a_pattern_come_and_go(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, NAMES[:1], 0, 3)
        await publish(client, ["topic://public/default/other"], 0, 3)
        consumer = await client.subscribe_topics(re.compile("orders-.*"), "s", initial_position="earliest")
        assert await take(consumer, "queue") == {NAMES[0]: [0, 1, 2]}
        await publish(client, NAMES[1:], 0, 3)
        assert await take(consumer, "queue", timeout=5.0) == {name: [0, 1, 2] for name in NAMES[1:]}
        assert consumer.topics == tuple(NAMES)
        brokers.reset_links()
        await publish(client, NAMES[:1], 3, 4)
        assert await take(consumer, "queue", timeout=5.0) == {NAMES[0]: [3]}
        gone = NAMES[1].removeprefix("topic://")
        assert (await Admin(brokers).ask("DELETE", f"/admin/v2/scalable/{gone}?force=true")).status == 204
        await asyncio.sleep(5.0)
        assert consumer.topics == (NAMES[0], NAMES[2])
        await publish(client, NAMES[2:], 3, 4)
        assert await take(consumer, "queue") == {NAMES[2]: [3]}


LETTERS: list[dict[str, Any]] = [
    {"dead_letter": DeadLetter(0)},
    {"dead_letter": DeadLetter(0, topic="orders-dead")},
    {"dead_letter": DeadLetter(0), "retry_topic": True},
    {"dead_letter": DeadLetter(1), "retry_topic": "orders-again"},
]


@pytest.mark.parametrize("letters", LETTERS, ids=str)
@pytest.mark.parametrize("topics", [re.compile("orders-.*"), None], ids=["pattern", "namespace"])
async def test_the_letters_of_a_consumer_are_no_topics_of_its_own(
    brokers: Brokers, topics: re.Pattern[str] | None, letters: dict[str, Any]
) -> None:
    async with brokers.client() as client:
        await publish(client, NAMES[:1], 0, 1)
        consumer = await client.subscribe_topics(
            topics,
            "s",
            namespace="public/default",
            initial_position="earliest",
            redelivery=Backoff(0.1, 0.1),
            **letters,
        )
        seen = 0
        while messages := await consumer.receive_many(1, timeout=5.0):
            seen += 1
            if "retry_topic" in letters:
                await consumer.reconsume_later(messages[0], delay=0.1)
            else:
                await consumer.negative_acknowledge(messages[0])
            assert seen < 5
        assert consumer.topics == (NAMES[0],)


async def test_a_pattern_of_letters_reads_letters(brokers: Brokers) -> None:
    async with brokers.client() as client:
        dead = f"{NAMES[0]}-DLQ"
        await publish(client, [dead, f"{dead}-DLQ", "topic://public/default/-DLQ"], 0, 1)
        consumer = await client.subscribe_topics(
            re.compile(".*-DLQ"), "s", initial_position="earliest", dead_letter=DeadLetter(3)
        )
        assert consumer.topics == ("topic://public/default/-DLQ", dead)


@pytest.mark.parametrize("kind", ["queue", "stream"])
async def test_classic_topics_of_a_pattern_are_found_and_followed(brokers: Brokers, kind: Any) -> None:
    classic = [f"persistent://public/default/orders-{n}" for n in range(3)]
    async with brokers.client() as client:
        await publish(client, [*classic[:1], "orders-scalable", "persistent://public/default/other"], 0, 3)
        consumer = await client.subscribe_topics(
            re.compile("persistent://public/default/orders-.*"), "s", kind=kind, initial_position="earliest"
        )
        assert await take(consumer, kind) == {classic[0]: [0, 1, 2]}
        await publish(client, classic[1:], 0, 3)
        assert await take(consumer, kind, timeout=10.0) == {name: [0, 1, 2] for name in classic[1:]}
        assert consumer.topics == tuple(classic)
        brokers.reset_links()
        await publish(client, classic[:1], 3, 4)
        assert await take(consumer, kind, timeout=10.0) == {classic[0]: [3]}


@pytest.mark.parametrize(("pattern", "namespace"), [("orders|returns", None), (None, "public/default")])
async def test_a_consumer_of_scalable_topics_warns_of_classic_ones(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, pattern: str | None, namespace: str | None
) -> None:
    async with brokers.client() as client:
        await publish(client, ["persistent://public/default/returns"], 0, 1)
        topics = None if pattern is None else re.compile(pattern)
        async with await client.subscribe_topics(topics, "s", namespace=namespace):
            await asyncio.sleep(1)
    assert "persistent://public/default/returns and 0 more classic topics" in caplog.text


async def test_a_namespace_is_filtered_by_the_properties_of_topics(brokers: Brokers) -> None:
    admin = Admin(brokers)
    for name, colour in zip(NAMES, ("red", "blue", "red"), strict=True):
        path = f"/admin/v2/scalable/{name.removeprefix('topic://')}"
        assert (await admin.ask("PUT", path, {"colour": colour})).status == 204
    async with brokers.client() as client:
        consumer = await client.subscribe_topics(
            None, "s", namespace="public/default", property_filters={"colour": "red"}
        )
        assert consumer.topics == (NAMES[0], NAMES[2])
        await publish(client, NAMES, 0, 2)
        assert await take(consumer, "queue") == {NAMES[0]: [0, 1], NAMES[2]: [0, 1]}


async def test_pausing_closing_and_messages_without_acknowledgement(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, NAMES, 0, 2)
        consumer = await client.subscribe_topics(NAMES, "s", initial_position="earliest")
        consumer.pause()
        assert consumer.paused
        with pytest.raises(ReceiveTimeoutError):
            await consumer.receive(timeout=2)
        consumer.resume()
        message = await consumer.receive(timeout=2)
        await consumer.negative_acknowledge(message, delay=0)
        found = await take(consumer, "queue")
        assert sorted(n for numbers in found.values() for n in numbers) == [0, 0, 0, 1, 1, 1]
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(1)
        await consumer.close()
        with pytest.raises(AlreadyClosedError):
            await waiting
        assert [message async for message in consumer] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": []}, "at least one"),
        ({"topics": "orders"}, "list"),
        ({"topics": None}, "namespace"),
        ({"topics": NAMES, "namespace": "public/default"}, "namespace"),
        ({"topics": None, "namespace": "public"}, "tenant/name"),
        ({"topics": NAMES, "kind": "stream", "order": "key"}, "order needs"),
        ({"topics": NAMES, "kind": "both"}, "kind"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(
    brokers: Brokers, arguments: dict[str, Any], text: str
) -> None:
    async with brokers.client() as client:
        with pytest.raises(InvalidConfigurationError, match=text):
            await client.subscribe_topics(subscription="s", **arguments)


async def test_acknowledging_needs_the_kind_and_the_message(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await publish(client, NAMES, 0, 2)
        queue = await client.subscribe_topics(NAMES, "q", initial_position="earliest")
        stream = await client.subscribe_topics(NAMES, "s", kind="stream", initial_position="earliest")
        message: Any = await queue.receive(timeout=5)
        with pytest.raises(InvalidConfigurationError, match="stream"):
            await queue.acknowledge_cumulative(message)
        with pytest.raises(InvalidConfigurationError, match="not its id"):
            await queue.acknowledge([message.id])
        with pytest.raises(InvalidConfigurationError, match="queue"):
            await stream.acknowledge(await stream.receive(timeout=5))
