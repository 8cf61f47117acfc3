"""The official `pulsar-client`, unchanged, against our broker."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pulsar
import pytest

from simulation.harness.process import BrokerProcess

KEYS = [f"key-{n}" for n in range(20)]


@contextmanager
def connected(broker: BrokerProcess) -> Iterator[Any]:
    client = pulsar.Client(
        broker.url, operation_timeout_seconds=20, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Any]:
    with connected(broker) as made:
        yield made


class Published:
    """Sends without waiting and collects the outcome of each message."""

    def __init__(self) -> None:
        self.failed: list[Any] = []
        self.open = 0
        self._changed = threading.Condition()

    def callback(self, result: Any, _message_id: Any) -> None:
        with self._changed:
            self.open -= 1
            if result != pulsar.Result.Ok:
                self.failed.append(result)
            self._changed.notify_all()

    def send(self, producer: Any, value: bytes, key: str) -> None:
        with self._changed:
            self.open += 1
        producer.send_async(value, self.callback, partition_key=key)

    def wait(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.open == 0, timeout=60), f"{self.open} sends unanswered"
        assert not self.failed, self.failed[:3]


def publish(
    client: Any, topic: str, count: int, *, compression: Any = None, batched: bool = True, first: int = 0
) -> None:
    producer = client.create_producer(
        topic,
        compression_type=pulsar.CompressionType.NONE if compression is None else compression,
        batching_enabled=batched,
        batching_type=pulsar.BatchingType.KeyBased,
        block_if_queue_full=True,
    )
    sent = Published()
    for n in range(first, first + count):
        sent.send(producer, str(n).encode(), KEYS[n % len(KEYS)])
    producer.flush()
    sent.wait()
    producer.close()


def receive_all(consumers: list[Any], count: int, each: Callable[[int, Any], None]) -> None:
    """Take `count` distinct values off the consumers, acknowledging each delivery."""
    seen: set[bytes] = set()
    idle = 0
    while len(seen) < count:
        idle += 1
        assert idle < 200, f"{len(seen)} of {count} messages came"
        for number, consumer in enumerate(consumers):
            with suppress(pulsar.Timeout):
                while len(seen) < count:
                    message = consumer.receive(timeout_millis=50)
                    idle = 0
                    each(number, message)
                    seen.add(message.data())
                    consumer.acknowledge(message)


@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4])
@pytest.mark.parametrize("batched", [True, False])
def test_exclusive_consumer_gets_everything_in_order(client: Any, compression: Any, batched: bool) -> None:
    consumer = client.subscribe("persistent://public/default/exclusive", "s", pulsar.ConsumerType.Exclusive)
    publish(client, "persistent://public/default/exclusive", 2000, compression=compression, batched=batched)
    by_key: dict[str, list[int]] = defaultdict(list)
    receive_all([consumer], 2000, lambda _, m: by_key[m.partition_key()].append(int(m.data())))
    assert all(values == sorted(values) for values in by_key.values())
    assert sum(len(values) for values in by_key.values()) == 2000


@pytest.mark.parametrize("batched", [True, False])
def test_the_largest_message_that_the_client_sends_comes_back(client: Any, batched: bool) -> None:
    consumer = client.subscribe("largest", "s", pulsar.ConsumerType.Exclusive)
    producer = client.create_producer("largest", batching_enabled=batched)
    # Without batches the client counts the header and the metadata too.
    value = bytes(5 * 2**20 - (20 if batched else 100))
    producer.send(value)
    message = consumer.receive(timeout_millis=20_000)
    assert message.data() == value
    consumer.acknowledge(message)
    # The connection of the consumer lives on.
    producer.send(b"small")
    assert consumer.receive(timeout_millis=20_000).data() == b"small"


def test_second_exclusive_consumer_is_refused(client: Any) -> None:
    client.subscribe("busy", "s", pulsar.ConsumerType.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("busy", "s", pulsar.ConsumerType.Exclusive)


def test_failover_hands_over_to_the_standby(client: Any) -> None:
    first = client.subscribe("failover", "s", pulsar.ConsumerType.Failover, consumer_name="a")
    second = client.subscribe("failover", "s", pulsar.ConsumerType.Failover, consumer_name="b")
    publish(client, "failover", 500)
    taken: list[int] = []
    receive_all([first, second], 500, lambda n, _: taken.append(n))
    assert len(set(taken)) == 1, "one consumer is active at a time"
    active, standby = (first, second) if taken[0] == 0 else (second, first)
    active.close()
    publish(client, "failover", 500, first=500)
    receive_all([standby], 500, lambda _n, _m: None)


def test_shared_consumers_split_the_work(client: Any) -> None:
    consumers = [
        client.subscribe("shared", "s", pulsar.ConsumerType.Shared, receiver_queue_size=50) for _ in range(3)
    ]
    publish(client, "shared", 1500, batched=False)
    counts: dict[int, int] = defaultdict(int)

    def count(number: int, _message: Any) -> None:
        counts[number] += 1

    receive_all(consumers, 1500, count)
    assert len(counts) == 3
    assert sum(counts.values()) == 1500, "no message was delivered twice"


def test_negative_acknowledgement_brings_the_message_again(client: Any) -> None:
    consumer = client.subscribe("nack", "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    publish(client, "nack", 1, batched=False)
    message = consumer.receive(timeout_millis=5000)
    assert message.redelivery_count() == 0
    consumer.negative_acknowledge(message)
    again = consumer.receive(timeout_millis=5000)
    assert again.data() == message.data()
    assert again.redelivery_count() == 1
    consumer.acknowledge(again)


def test_only_a_key_that_fails_reaches_the_dead_letter_topic(client: Any) -> None:
    dead = client.subscribe("keyed-dead", "look", pulsar.ConsumerType.Shared)
    consumer = client.subscribe(
        "keyed-poison",
        "s",
        pulsar.ConsumerType.KeyShared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, "keyed-dead"),
    )
    producer = client.create_producer("keyed-poison", batching_enabled=False)
    for number in range(30):
        producer.send(str(number).encode(), partition_key=f"key-{number % 3}")
    done: dict[str, None] = {}
    attempts = 0
    while len(done) < 29 or attempts < 3:
        message = consumer.receive(timeout_millis=10_000)
        value = message.data().decode()
        if value == "3":
            attempts += 1
            consumer.negative_acknowledge(message)
        else:
            done[value] = None
            consumer.acknowledge(message)
    letter = dead.receive(timeout_millis=10_000)
    assert letter.data() == b"3"
    assert attempts == 3
    for key in range(3):
        mine = [int(value) for value in done if int(value) % 3 == key]
        assert mine == sorted(mine)
    with pytest.raises(pulsar.Timeout):
        dead.receive(timeout_millis=500)


def test_key_shared_keeps_a_key_on_one_consumer_in_order(client: Any) -> None:
    consumers = [client.subscribe("keyed", "s", pulsar.ConsumerType.KeyShared) for _ in range(3)]
    publish(client, "keyed", 3000, compression=pulsar.CompressionType.LZ4)
    by_key: dict[str, list[int]] = defaultdict(list)
    owners: dict[str, set[int]] = defaultdict(set)

    def note(number: int, message: Any) -> None:
        by_key[message.partition_key()].append(int(message.data()))
        owners[message.partition_key()].add(number)

    receive_all(consumers, 3000, note)
    assert all(values == sorted(set(values)) for values in by_key.values())
    assert all(len(numbers) == 1 for numbers in owners.values())
    assert len({next(iter(numbers)) for numbers in owners.values()}) > 1


def test_reader_and_seek_start_where_they_are_told(client: Any) -> None:
    publish(client, "read", 100, batched=False)
    reader = client.create_reader("read", pulsar.MessageId.earliest)
    ids = []
    for n in range(100):
        message = reader.read_next(timeout_millis=5000)
        assert int(message.data()) == n
        ids.append(message.message_id())
    assert not reader.has_message_available()
    reader.seek(ids[40])
    assert int(reader.read_next(timeout_millis=5000).data()) in (40, 41)
    consumer = client.subscribe("read", "again", initial_position=pulsar.InitialPosition.Earliest)
    assert int(consumer.receive(timeout_millis=5000).data()) == 0
    consumer.unsubscribe()


def test_cumulative_acknowledgement_survives_a_restart(broker: BrokerProcess) -> None:
    with connected(broker) as client:
        consumer = client.subscribe("cumulative", "s", pulsar.ConsumerType.Exclusive)
        publish(client, "cumulative", 100, batched=False)
        for _ in range(60):
            message = consumer.receive(timeout_millis=5000)
        consumer.acknowledge_cumulative(message)
        consumer.close()
    broker.stop()
    broker.start()
    with connected(broker) as client:
        consumer = client.subscribe("cumulative", "s", pulsar.ConsumerType.Exclusive)
        assert int(consumer.receive(timeout_millis=5000).data()) == 60


@pytest.mark.parametrize(
    "kind",
    [
        pulsar.ConsumerType.Exclusive,
        pulsar.ConsumerType.Failover,
        pulsar.ConsumerType.Shared,
        pulsar.ConsumerType.KeyShared,
    ],
)
def test_nothing_is_lost_when_the_broker_is_killed(broker: BrokerProcess, kind: Any) -> None:
    total = 6000
    with connected(broker) as client:
        consumer = client.subscribe("killed", "s", kind)
        producer = client.create_producer(
            "killed",
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            compression_type=pulsar.CompressionType.LZ4,
            block_if_queue_full=True,
            send_timeout_millis=60_000,
        )
        sent = Published()

        def publish_all() -> None:
            for n in range(total):
                sent.send(producer, str(n).encode(), KEYS[n % len(KEYS)])
                if n % 50 == 0:
                    threading.Event().wait(0.005)
            producer.flush()

        thread = threading.Thread(target=publish_all)
        thread.start()
        first_seen: dict[str, list[int]] = defaultdict(list)
        seen: set[int] = set()
        idle = 0
        killed = False
        while len(seen) < total:
            try:
                message = consumer.receive(timeout_millis=500)
            except pulsar.Timeout:
                idle += 1
                assert idle < 80, f"{len(seen)} of {total} came"
                continue
            idle = 0
            n = int(message.data())
            if n not in seen:
                seen.add(n)
                first_seen[message.partition_key()].append(n)
            consumer.acknowledge(message)
            if not killed and len(seen) > total // 3:
                killed = True
                broker.kill()
                broker.start()
        thread.join(30)
        sent.wait()
        assert killed
        if kind != pulsar.ConsumerType.Shared:
            assert all(values == sorted(values) for values in first_seen.values()), "a key came out of order"
