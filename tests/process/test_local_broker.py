"""The broker that applications use in their own tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.errors import InvalidConfigurationError, TopicNotFoundError
from anabranch.testing.local_broker import LocalBroker

pytest_plugins = ["anabranch.testing.pytest_broker"]

STARTS, STARTS_S = 500, 30.0
"""So many brokers start, create a topic and stop within this time."""

SLOW_S = 2.0


@pytest.fixture
def client(anabranch_broker: LocalBroker) -> Iterator[anabranch.Client]:
    with anabranch.Client(anabranch_broker.url) as made:
        yield made


def read(client: anabranch.Client, count: int) -> list[tuple[str | None, int]]:
    consumer = client.subscribe_stream("orders", "s", initial_position="earliest")
    found: list[tuple[str | None, int]] = []
    while len(found) < count:
        message = consumer.receive(timeout=20)
        found.append((message.key, int(message.data)))
        consumer.acknowledge_cumulative(message)
    return found


def test_keys_keep_their_order_through_split_merge_and_crash(
    anabranch_broker: LocalBroker, client: anabranch.Client
) -> None:
    anabranch_broker.create_topic("orders")
    producer = client.create_producer("orders")
    changes: list[Callable[[], object]] = [
        lambda: anabranch_broker.split("orders"),
        anabranch_broker.crash,
        lambda: anabranch_broker.merge("orders"),
        lambda: None,
    ]
    for number, change in enumerate(changes):
        producer.send_many([b"%d" % number] * 20, keys=[f"k{key}" for key in range(20)])
        change()
    assert anabranch_broker.segments("orders") == [3]
    found = read(client, 80)
    for key in range(20):
        assert [number for name, number in found if name == f"k{key}"] == [0, 1, 2, 3]


@pytest.mark.real_time
async def test_the_asynchronous_client_uses_it_too(anabranch_broker: LocalBroker) -> None:
    async with anabranch.AsyncClient(anabranch_broker.url) as client:
        producer = await client.create_producer("orders")
        assert await producer.send(b"tea", key="alice")
    assert anabranch_broker.split("orders", 0, points=[0x4000, 0x8000]) == [1, 2, 3]


def test_the_examples_of_the_guide_run() -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing-applications.md").read_text()
    names: dict[str, Any] = {}
    for block in text.split("```python\n")[1:]:
        exec(block.partition("```")[0], names)
    tests = [name for name in names if name.startswith("test_")]
    assert tests == ["test_orders_survive_a_crash", "test_other_keys_go_on"]
    for name in tests:
        with LocalBroker() as broker:
            names[name](broker)


def test_each_broker_is_fresh_and_its_settings_are_those_of_serve() -> None:
    for _ in range(2):
        with LocalBroker(allowAutoTopicCreation=False) as broker, anabranch.Client(broker.url) as client:
            with pytest.raises(TopicNotFoundError):
                client.create_producer("orders")
            broker.create_topic("orders", segments=2)
            assert broker.segments("orders") == [0, 1]


def test_500_brokers_start_one_after_the_other_within_30_s() -> None:
    began = time.monotonic()
    for _ in range(STARTS):
        with LocalBroker() as broker:
            broker.create_topic("orders")
            assert broker.segments("orders") == [0]
    assert time.monotonic() - began < STARTS_S


def arrivals(receive: Callable[[], anabranch.Message[bytes]], count: int) -> list[tuple[str | None, float]]:
    """The keys of the next messages, and the times at which they arrived."""
    return [(receive().key, time.monotonic()) for _ in range(count)]


def test_a_queue_delivers_other_keys_while_one_is_slow(
    anabranch_broker: LocalBroker, client: anabranch.Client
) -> None:
    queue = client.subscribe_queue("orders", "q")
    producer = client.create_producer("orders")
    stored = time.monotonic()
    with anabranch_broker.slow_key("orders", "slow", SLOW_S):
        for key in ("slow", "other"):
            producer.send(b"1", key=key)
    producer.send(b"2", key="slow")
    found = arrivals(lambda: queue.receive(timeout=20), 3)
    assert [key for key, _ in found] == ["other", "slow", "slow"], "the key is not slow behind the block"
    assert found[2][1] - stored >= SLOW_S > found[1][1] - stored


def test_a_stream_delivers_other_segments_while_a_key_is_slow(
    anabranch_broker: LocalBroker, client: anabranch.Client
) -> None:
    anabranch_broker.create_topic("orders", segments=2)
    stream = client.subscribe_stream("orders", "s")
    producer = client.create_producer("orders")
    ids = {key: producer.send(b"0", key=key).segment for key in map(str, range(8))}
    assert len(arrivals(lambda: stream.receive(timeout=20), 8)) == 8
    slow, beside = "0", next(key for key in ids if ids[key] != ids["0"])
    behind = next(key for key in ids if ids[key] == ids["0"] and key != "0")
    stored = time.monotonic()
    with anabranch_broker.slow_key("orders", slow, SLOW_S):
        for key in (slow, behind, beside):
            producer.send(b"1", key=key)
    found = arrivals(lambda: stream.receive(timeout=20), 3)
    assert [key for key, _ in found] == [beside, slow, behind], "the order of a segment stays as it is"
    assert found[1][1] - stored >= SLOW_S > found[0][1] - stored


def test_a_classic_topic_has_slow_keys_too(anabranch_broker: LocalBroker, client: anabranch.Client) -> None:
    name = "persistent://public/default/classic"
    queue = client.subscribe_queue(name, "q")
    producer = client.create_producer(name)
    with anabranch_broker.slow_key(name, "slow", SLOW_S), anabranch_broker.slow_key("other", "quick", 60):
        for key in ("slow", "quick"):
            producer.send(b"1", key=key)
    assert [key for key, _ in arrivals(lambda: queue.receive(timeout=20), 2)] == ["quick", "slow"]


def test_a_broker_that_does_not_run_says_so_at_once() -> None:
    broker = LocalBroker()
    calls: list[Callable[[], object]] = [
        broker.crash,
        lambda: broker.create_topic("orders"),
        lambda: broker.segments("orders"),
        lambda: broker.split("orders"),
        lambda: broker.merge("orders"),
    ]
    for call in calls:
        with pytest.raises(InvalidConfigurationError, match="does not run"):
            call()
    broker.start().stop()
    for call in calls:
        with pytest.raises(InvalidConfigurationError, match="does not run"):
            call()
