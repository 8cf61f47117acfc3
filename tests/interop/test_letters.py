"""Retry letters and dead letters of our client, and of others, read with the official `pulsar-client`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pulsar.schema as theirs
import pytest

from anabranch import Backoff, Client, DeadLetter, Schema
from simulation.harness.process import BrokerProcess

TOPIC = "persistent://public/default/letters"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("letters") / "data", {}) as process:
        yield process


@pytest.fixture(scope="module")
def official(broker: BrokerProcess) -> Iterator[Any]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.url) as made:
        yield made


def test_they_read_our_retry_and_its_dead_letter(client: Client, official: Any) -> None:
    producer = official.create_producer(TOPIC, schema=theirs.StringSchema())
    producer.send("tea", partition_key="alice", properties={"size": "small"})
    consumer = client.subscribe_queue(
        TOPIC, "s", initial_position="earliest", retry_topic=True, dead_letter=DeadLetter(1)
    )
    first = consumer.receive(timeout=10)
    consumer.reconsume_later(first, delay=0.5)
    watching = official.subscribe(
        f"{TOPIC}-s-RETRY",
        "watch",
        pulsar.ConsumerType.Shared,
        schema=theirs.StringSchema(),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    retry = watching.receive(10_000)
    assert (retry.value(), retry.partition_key()) == ("tea", "alice")
    assert retry.properties() == {
        "size": "small",
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "500",
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": str(first.id),
        "ORIGIN_SEGMENT": "0",
    }
    consumer.reconsume_later(consumer.receive(timeout=10), reason="no cup")
    letters = official.subscribe(
        f"{TOPIC}-DLQ",
        "watch",
        schema=theirs.StringSchema(),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    letter = letters.receive(10_000)
    assert (letter.value(), letter.partition_key()) == ("tea", "alice")
    assert letter.properties()["REAL_TOPIC"] == TOPIC
    assert letter.properties()["ORIGIN_MESSAGE_ID"] == str(first.id)
    assert letter.properties()["RECONSUMETIMES"] == "1"


def test_our_consumer_goes_on_with_the_retries_of_another_client(client: Client, official: Any) -> None:
    """A retry letter with the properties that Pulsar's Java client writes."""
    topic = f"{TOPIC}-theirs"
    origin = {"REAL_TOPIC": topic, "ORIGIN_MESSAGE_ID": "3:7:-1", "DELAY_TIME": "1000"}
    official.create_producer(f"{topic}-s-RETRY", schema=theirs.StringSchema()).send(
        "tea", properties={**origin, "RECONSUMETIMES": "2"}
    )
    consumer = client.subscribe_queue(
        topic,
        "s",
        schema=Schema.string(),
        retry_topic=True,
        dead_letter=DeadLetter(3),
        redelivery=Backoff(0.1, 0.1),
    )
    message = consumer.receive(timeout=10)
    assert message.value == "tea"
    consumer.reconsume_later(message)
    again = consumer.receive(timeout=10)
    assert again.properties["RECONSUMETIMES"] == "3"
    assert again.properties["ORIGIN_MESSAGE_ID"] == "3:7:-1"
    consumer.reconsume_later(again)
    letters = client.subscribe_queue(f"{topic}-DLQ", "s", schema=Schema.string(), initial_position="earliest")
    letter = letters.receive(timeout=10)
    assert (letter.value, letter.properties["REAL_TOPIC"]) == ("tea", topic)
