"""Our blocking client in the comparison."""

from __future__ import annotations

import time
from multiprocessing.synchronize import Event
from typing import ClassVar

from anabranch import Client
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
from benchmarks.peers.ours import AT_ONCE

SUBSCRIPTION = "bench-blocking"


class OursBlocking(Contender):
    name: ClassVar[str] = "anabranch, blocking"
    module: ClassVar[str] = "anabranch"
    is_ours: ClassVar[bool] = True
    has_queues: ClassVar[bool] = True

    def publish_each(self, topic: str, count: int) -> float:
        with Client(self.address) as client:
            producer = client.create_producer(topic)
            producer.send_many(VALUES, keys=KEYS)
            began = time.perf_counter()
            outcomes = [producer.enqueue(VALUES[n % BATCH], key=KEYS[n % BATCH]) for n in range(count)]
            producer.flush()
            seconds = time.perf_counter() - began
            assert all(outcome.exception() is None for outcome in outcomes)
            return count / seconds

    def publish_bulk(self, topic: str, count: int) -> float:
        with Client(self.address) as client:
            producer = client.create_producer(topic)
            producer.send_many(VALUES, keys=KEYS)
            began = time.perf_counter()
            for _ in range(count // BATCH):
                producer.enqueue_many(VALUES, keys=KEYS)
            producer.flush()
            return count / (time.perf_counter() - began)

    def consume_each(self, topic: str, count: int) -> float:
        with Client(self.address) as client:
            consumer = client.subscribe_stream(topic, f"{SUBSCRIPTION}-each", initial_position="earliest")
            watch, taken = Stopwatch(), 0
            for message in consumer:
                if not taken:
                    watch.started()
                taken += len(message.data) > 0
                consumer.acknowledge_cumulative(message)
                if taken == count:
                    break
            return watch.rate(count)

    def consume_many(self, topic: str, count: int) -> float:
        with Client(self.address) as client:
            consumer = client.subscribe_stream(topic, f"{SUBSCRIPTION}-many", initial_position="earliest")
            watch, taken = Stopwatch(), 0
            while taken < count:
                messages = consumer.receive_many(min(BATCH, count - taken), timeout=WAIT_S)
                if not taken:
                    watch.started(len(messages))
                taken += sum(len(message.data) > 0 for message in messages)
                consumer.acknowledge_cumulative(messages[-1])
            return watch.rate(taken)

    def consume_queue(self, topic: str, count: int) -> float:
        with Client(self.address) as client:
            consumer = client.subscribe_queue(topic, f"{SUBSCRIPTION}-queue", initial_position="earliest")
            watch, taken = Stopwatch(), 0
            for message in consumer:
                if not taken:
                    watch.started()
                taken += len(message.data) > 0
                consumer.acknowledge(message)
                if taken == count:
                    break
            return watch.rate(count)

    def send_times(self, topic: str, count: int) -> list[float]:
        with Client(self.address) as client:
            producer = client.create_producer(topic)
            times = []
            for n in range(count):
                began = time.perf_counter()
                producer.send(VALUES[n % BATCH], key=KEYS[n % BATCH])
                times.append(time.perf_counter() - began)
                time.sleep(PAUSE_S)
            return times

    def send_paced(self, topic: str, rate: int, seconds: float) -> None:
        with Client(self.address) as client:
            producer = client.create_producer(topic, batching=AT_ONCE)
            sent = 0
            for pause_s, count in due(rate, seconds):
                if pause_s:
                    time.sleep(pause_s)
                for _ in range(count):
                    value, key = stamped(sent)
                    producer.enqueue(value, key=key)
                    sent += 1
            producer.flush()

    def receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        with Client(self.address) as client:
            consumer = client.subscribe_stream(topic, SUBSCRIPTION, initial_position="earliest")
            ready.set()
            found: list[float] = []
            while len(found) < count:
                messages = consumer.receive_many(BATCH, timeout=WAIT_S)
                found += ages([message.data for message in messages])
                consumer.acknowledge_cumulative(messages[-1])
            return found
