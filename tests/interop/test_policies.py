"""Compaction, expiry and backlog quotas as the official `pulsar-client` notices them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch.admin.client import AdminClient
from simulation.harness.process import BrokerProcess

TOPIC = "persistent://public/default/kept"
PATH = "/admin/v2/persistent/public/default/kept"
PATIENCE_S = 20.0


@pytest.fixture
def checking(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that looks at its policies often."""
    with BrokerProcess(tmp_path / "data", {"policy_check_s": 0.1}) as process:
        yield process


def call(broker: BrokerProcess, method: str, path: str, body: object = None) -> Any:
    with AdminClient(broker.http_url) as admin:
        return admin.call(method, path, body=body)


@pytest.fixture
def client(checking: BrokerProcess) -> Iterator[Any]:
    made = pulsar.Client(
        checking.url, operation_timeout_seconds=3, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield made
    made.close()


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def drain(receive: Callable[[int], Any]) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while True:
        try:
            message = receive(500)
        except pulsar.Timeout:
            return found
        found.append((message.partition_key(), message.data()))


def test_a_compacted_reader_sees_the_latest_values_and_the_tail(checking: BrokerProcess, client: Any) -> None:
    producer = client.create_producer(TOPIC, batching_enabled=True, batching_max_publish_delay_ms=20)
    for number in range(30):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 3}")
    producer.send_async(b"x", lambda *_: None, partition_key="gone")
    producer.flush()
    producer.send(b"", partition_key="gone")
    call(checking, "PUT", f"{PATH}/compaction")
    until(lambda: call(checking, "GET", f"{PATH}/compaction")["status"] == "SUCCESS")
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    latest = [("k0", b"27"), ("k1", b"28"), ("k2", b"29")]
    found = []
    while reader.has_message_available():
        message = reader.read_next(5000)
        found.append((message.partition_key(), message.data()))
    assert found == latest
    producer.send(b"tail", partition_key="k0")
    assert reader.read_next(5000).data() == b"tail"
    reader.close()
    checking.kill()
    checking.start()
    consumer = client.subscribe(
        TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest, is_read_compacted=True
    )
    assert drain(consumer.receive) == [*latest, ("k0", b"tail")]
    consumer.close()


def test_messages_expire_while_a_consumer_is_connected(checking: BrokerProcess, client: Any) -> None:
    consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC)
    call(checking, "POST", f"{PATH}/messageTTL?messageTTL=1")
    producer.send(b"old")
    assert consumer.receive(5000).data() == b"old"

    def backlog() -> int:
        return int(call(checking, "GET", f"{PATH}/stats")["subscriptions"]["s"]["msgBacklog"])

    until(lambda: backlog() == 0)
    producer.send(b"new")
    assert consumer.receive(5000).data() == b"new"


def test_a_producer_beyond_its_backlog_quota_gets_pulsars_errors(
    checking: BrokerProcess, client: Any
) -> None:
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC, send_timeout_millis=3000)
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    call(checking, "POST", f"{PATH}/backlogQuota", quota)
    producer.send(bytes(2000))
    time.sleep(1.0)
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer(TOPIC)
    consumer.acknowledge(consumer.receive(5000))
    until(lambda: _publishes(client))


def _publishes(client: Any) -> bool:
    try:
        client.create_producer(TOPIC).send(b"more")
    except pulsar.PulsarException:
        return False
    return True


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batch"])
def test_an_entry_beyond_the_size_of_its_topic_fails_alone_and_at_once(
    checking: BrokerProcess, client: Any, batching: bool
) -> None:
    client.create_producer(TOPIC).close()
    call(checking, "POST", f"{PATH}/maxMessageSize", 1000)
    producer = client.create_producer(
        TOPIC, send_timeout_millis=0, batching_enabled=batching, batching_max_messages=2
    )
    answers: list[pulsar.Result] = []
    for size in (1, 1, 2000, 2000, 1, 1):
        producer.send_async(bytes(size), lambda result, _: answers.append(result))
    until(lambda: len(answers) == 6)
    fine, refused = [pulsar.Result.Ok] * 2, [pulsar.Result.ChecksumError] * 2
    assert answers == [*fine, *refused, *fine]
    producer.flush()
