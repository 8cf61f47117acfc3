"""`confluent-kafka` (a C library) on a real Kafka."""

from __future__ import annotations

import time
from multiprocessing.synchronize import Event
from typing import Any, ClassVar

from benchmarks.peers.contender import (
    BATCH,
    KEYS,
    PAUSE_S,
    VALUES,
    WAIT_S,
    Contender,
    Stopwatch,
    ages,
    due,
    stamped,
)

QUEUED_MAX = 100_000
PARTITIONS = 1
"""One, as our topic has one segment: every append is a sync, and fewer and larger ones suit Kafka best."""


class ConfluentKafka(Contender):
    name: ClassVar[str] = "confluent-kafka"
    module: ClassVar[str] = "confluent_kafka"

    def prepare(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        # The request ends with its client, so the client must outlive it.
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(WAIT_S)

    def publish_each(self, topic: str, count: int) -> float:
        outcomes: list[object] = []

        def settled(error: object, _message: object) -> None:
            assert error is None
            outcomes.append(error)

        rate = self._publish(topic, count, settled)
        assert len(outcomes) == count
        return rate

    def publish_bulk(self, topic: str, count: int) -> float:
        return self._publish(topic, count, None)

    def consume_each(self, topic: str, count: int) -> float:
        consumer = self._subscribe(topic, "each", **{"enable.auto.offset.store": False})
        watch, taken = Stopwatch(), 0
        while taken < count:
            message = consumer.poll(WAIT_S)
            if not taken:
                watch.started()
            taken += len(message.value()) > 0
            consumer.store_offsets(message)
        rate = watch.rate(count)
        consumer.close()
        return rate

    def consume_many(self, topic: str, count: int) -> float:
        consumer = self._subscribe(topic, "many", **{"enable.auto.commit": False})
        watch, taken = Stopwatch(), 0
        while taken < count:
            messages = consumer.consume(BATCH, WAIT_S if not taken else 1.0)
            if not taken:
                watch.started(len(messages))
            taken += sum(len(message.value()) > 0 for message in messages)
            consumer.commit(asynchronous=True)
        rate = watch.rate(taken)
        consumer.close()
        return rate

    def send_times(self, topic: str, count: int) -> list[float]:
        producer = self._producer(**{"linger.ms": 0})
        times = []
        for n in range(count):
            began = time.perf_counter()
            producer.produce(topic, VALUES[n % BATCH], KEYS[n % BATCH])
            producer.flush()
            times.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
        return times

    def send_paced(self, topic: str, rate: int, seconds: float) -> None:
        producer = self._producer(**{"linger.ms": 0})
        sent = 0
        for pause_s, count in due(rate, seconds):
            if pause_s:
                time.sleep(pause_s)
            for _ in range(count):
                value, key = stamped(sent)
                producer.produce(topic, value, key)
                sent += 1
            producer.poll(0)
        producer.flush()

    def receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        consumer = self._subscribe(topic, "stamped")
        consumer.poll(0.5)
        ready.set()
        found: list[float] = []
        while len(found) < count:
            message = consumer.poll(WAIT_S)
            found += ages([message.value()])
        consumer.close()
        return found

    def _producer(self, **more: object) -> Any:
        from confluent_kafka import Producer

        return Producer(
            {
                "bootstrap.servers": self.address,
                "acks": "all",
                "queue.buffering.max.messages": QUEUED_MAX,
                **more,
            }
        )

    def _publish(self, topic: str, count: int, settled: Any) -> float:
        producer = self._producer(**{"linger.ms": 5})
        began = time.perf_counter()
        for n in range(count):
            while True:
                try:
                    producer.produce(topic, VALUES[n % BATCH], KEYS[n % BATCH], on_delivery=settled)
                    break
                except BufferError:
                    producer.poll(0.01)
            if n % BATCH == 0:
                producer.poll(0)
        producer.flush()
        return count / (time.perf_counter() - began)

    def _subscribe(self, topic: str, group: str, **more: object) -> Any:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": f"{topic}-{group}",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 500,
                # By default, a consumer whose queue was full once fetches nothing for a second.
                "fetch.queue.backoff.ms": 10,
                **more,
            }
        )
        # A group of one consumer: assigning by hand saves the seconds that a group takes to form.
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        return consumer
