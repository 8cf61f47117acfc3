"""Quotas as the official `pulsar-client` notices them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from anabranch.admin.client import AdminClient
from simulation.harness.process import BrokerProcess

TOPIC = "persistent://public/default/limited"
RATE = 100
COUNT = 300


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Any]:
    made = pulsar.Client(
        broker.url, operation_timeout_seconds=20, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield made
    made.close()


def limit(broker: BrokerProcess, **policies: object) -> None:
    with AdminClient(broker.http_url) as admin:
        admin.set_quotas("public/default", policies)
    # Every worker follows a change within a few polls of the metadata store.
    time.sleep(0.5)


def test_a_producer_is_slowed_to_the_rate_and_loses_nothing(broker: BrokerProcess, client: Any) -> None:
    limit(broker, publishRate={"publishThrottlingRateInMsg": RATE})
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    began_s, stored, answered = time.monotonic(), [], threading.Event()

    def done(result: Any, _: Any) -> None:
        stored.append(result)
        if len(stored) == COUNT:
            answered.set()

    for number in range(COUNT):
        producer.send_async(b"%d" % number, done)
    assert answered.wait(60.0)
    assert set(stored) == {pulsar.Result.Ok}
    # A second of burst passes at once, and the entries of one read may be a debt at the end.
    assert time.monotonic() - began_s >= (COUNT - RATE) / RATE - 1.0
    producer.close()


def test_a_consumer_is_slowed_to_the_rate_and_misses_nothing(broker: BrokerProcess, client: Any) -> None:
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    for number in range(COUNT):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    limit(broker, dispatchRate={"dispatchThrottlingRateInMsg": RATE})
    began_s = time.monotonic()
    consumer = client.subscribe(TOPIC, "slow", initial_position=pulsar.InitialPosition.Earliest)
    received = [consumer.receive(60_000).data() for _ in range(COUNT)]
    assert received == [b"%d" % number for number in range(COUNT)]
    assert time.monotonic() - began_s >= (COUNT - RATE) / RATE - 1.0
    consumer.close()


def test_refusals_are_those_of_pulsar(broker: BrokerProcess, client: Any) -> None:
    limit(broker, maxProducersPerTopic=1, maxConsumersPerTopic=1, maxSubscriptionsPerTopic=1)
    producer = client.create_producer(TOPIC)
    consumer = client.subscribe(TOPIC, "first", consumer_type=pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(TOPIC)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(TOPIC, "first", consumer_type=pulsar.ConsumerType.Shared)
    consumer.close()
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(TOPIC, "second")
    producer.close()
