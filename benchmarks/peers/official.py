"""The official `pulsar-client` (a C++ library) on our broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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

SUBSCRIPTION = "bench-official"
WAIT_MS = int(WAIT_S * 1000)


class OfficialPulsar(Contender):
    name: ClassVar[str] = "pulsar-client"
    module: ClassVar[str] = "pulsar"
    has_queues: ClassVar[bool] = True

    def publish_each(self, topic: str, count: int) -> float:
        done = threading.Semaphore(0)
        rate = self._publish(topic, count, lambda result, _id: done.release())
        for _ in range(count):
            done.acquire()
        return rate

    def publish_bulk(self, topic: str, count: int) -> float:
        return self._publish(topic, count, None)

    def consume_each(self, topic: str, count: int) -> float:
        client, consumer = self._subscribe(topic, "each", shared=False)
        return self._take_each(client, consumer, count, consumer.acknowledge_cumulative)

    def consume_queue(self, topic: str, count: int) -> float:
        client, consumer = self._subscribe(topic, "queue", shared=True)
        return self._take_each(client, consumer, count, consumer.acknowledge)

    def consume_many(self, topic: str, count: int) -> float:
        client, consumer = self._subscribe(topic, "many", shared=False)
        watch, taken = Stopwatch(), 0
        while taken < count:
            messages = consumer.batch_receive()
            if not taken:
                watch.started(len(messages))
            taken += sum(len(message.data()) > 0 for message in messages)
            if messages:
                consumer.acknowledge_cumulative(messages[-1])
        rate = watch.rate(taken)
        client.close()
        return rate

    def send_times(self, topic: str, count: int) -> list[float]:
        client = self._client()
        producer = client.create_producer(_classic(topic))
        times = []
        for n in range(count):
            began = time.perf_counter()
            producer.send(VALUES[n % BATCH], partition_key=KEYS[n % BATCH])
            times.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
        client.close()
        return times

    def send_paced(self, topic: str, rate: int, seconds: float) -> None:
        client = self._client()
        producer = client.create_producer(
            _classic(topic), batching_max_publish_delay_ms=1, block_if_queue_full=True
        )
        sent = 0
        for pause_s, count in due(rate, seconds):
            if pause_s:
                time.sleep(pause_s)
            for _ in range(count):
                value, key = stamped(sent)
                producer.send_async(value, None, partition_key=key)
                sent += 1
        producer.flush()
        client.close()

    def receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        client, consumer = self._subscribe(topic, "stamped", shared=False)
        ready.set()
        found: list[float] = []
        while len(found) < count:
            message = consumer.receive(WAIT_MS)
            found += ages([message.data()])
            consumer.acknowledge_cumulative(message)
        client.close()
        return found

    def _client(self) -> Any:
        import pulsar

        return pulsar.Client(self.address, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def _publish(self, topic: str, count: int, callback: Callable[..., None] | None) -> float:
        client = self._client()
        producer = client.create_producer(
            _classic(topic), batching_enabled=True, block_if_queue_full=True, max_pending_messages=10_000
        )
        began = time.perf_counter()
        for n in range(count):
            producer.send_async(VALUES[n % BATCH], callback, partition_key=KEYS[n % BATCH])
        producer.flush()
        rate = count / (time.perf_counter() - began)
        client.close()
        return rate

    def _subscribe(self, topic: str, name: str, *, shared: bool) -> tuple[Any, Any]:
        import pulsar

        client = self._client()
        consumer = client.subscribe(
            _classic(topic),
            f"{SUBSCRIPTION}-{name}",
            consumer_type=pulsar.ConsumerType.Shared if shared else pulsar.ConsumerType.Exclusive,
            receiver_queue_size=10_000,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(BATCH, 10 * 2**20, 100),
        )
        return client, consumer

    def _take_each(self, client: Any, consumer: Any, count: int, acknowledge: Callable[..., None]) -> float:
        watch = Stopwatch()
        for n in range(count):
            message = consumer.receive(WAIT_MS)
            if not n:
                watch.started()
            assert message.data()
            acknowledge(message)
        rate = watch.rate(count)
        client.close()
        return rate


def _classic(topic: str) -> str:
    return f"persistent://public/default/{topic}"
