"""The broker that applications use in their own tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.errors import TopicNotFoundError
from anabranch.testing.local_broker import LocalBroker

pytest_plugins = ["anabranch.testing.pytest_broker"]

START_S = 0.5
"""Longest mean time of a start and a stop; on an idle machine it is a hundredth of this."""


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


def test_the_example_of_the_guide_runs(anabranch_broker: LocalBroker) -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing-applications.md").read_text()
    names: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    names["test_orders_survive_a_crash"](anabranch_broker)


def test_each_broker_is_fresh_and_its_settings_are_those_of_serve() -> None:
    began = time.monotonic()
    for _ in range(10):
        with LocalBroker(allowAutoTopicCreation=False) as broker, anabranch.Client(broker.url) as client:
            with pytest.raises(TopicNotFoundError):
                client.create_producer("orders")
            broker.create_topic("orders", segments=2)
            assert broker.segments("orders") == [0, 1]
    assert (time.monotonic() - began) / 10 < START_S
