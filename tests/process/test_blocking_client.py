"""The blocking client against a real broker process."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

import anabranch
from anabranch.errors import (
    AlreadyClosedError,
    InvalidConfigurationError,
    ReceiveTimeoutError,
    SendTimeoutError,
)
from simulation.harness.process import BrokerProcess


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return make_broker().start()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[anabranch.Client]:
    with anabranch.Client(broker.url) as made:
        yield made


def test_sends_of_one_thread_stay_in_order_however_they_are_made(client: anabranch.Client) -> None:
    with client.create_producer("orders") as producer:
        futures = [producer.enqueue(b"%d" % n, key="k") for n in range(1000)]
        producer.send(b"1000", key="k")
        many = producer.enqueue_many([b"%d" % n for n in range(1001, 1500)], keys=["k"] * 499)
        producer.send_many([b"1500"], keys=["k"])
        assert all(future.done() for future in futures)
        assert many.result(timeout=10) is None
        assert futures[0].result() < futures[-1].result()
    consumer = client.create_checkpoint_consumer("orders", start=anabranch.Checkpoint.earliest())
    values: list[int] = []
    while messages := consumer.receive_many(400, timeout=20 if len(values) < 1501 else 1):
        values += [int(message.data) for message in messages]
    assert values == list(range(1501))


def test_repr_shows_topic_subscription_and_state(client: anabranch.Client, broker: BrokerProcess) -> None:
    topic = "topic://public/default/orders"
    producer = client.create_producer("orders", name="me")
    stream = client.subscribe_stream("orders", "s")
    queue = client.subscribe_queue("orders", "q")
    topics = client.subscribe_topics(["orders"], "t")
    reader = client.create_checkpoint_consumer("orders")
    shown = {
        client: f"Client url={broker.url}",
        producer: f"Producer topic={topic} name=me",
        stream: f"StreamConsumer topic={topic} subscription=s",
        queue: f"QueueConsumer topic={topic} subscription=q",
        topics: f"TopicsConsumer topics={topic} subscription=t",
        reader: f"CheckpointConsumer topic={topic}",
    }
    for handle, text in shown.items():
        assert repr(handle) == f"<{text} open>"
    for consumer in (stream, queue, topics, reader):
        consumer.pause()
        assert repr(consumer) == f"<{shown[consumer]} paused>"
    for handle, text in reversed(shown.items()):
        handle.close()
        assert repr(handle) == f"<{text} closed>"


def test_a_thread_with_a_running_loop_may_block_as_notebooks_do(client: anabranch.Client) -> None:
    async def cell() -> bytes:
        client.create_producer("orders").send(b"one", key="k")
        consumer = client.subscribe_stream("orders", "s", initial_position="earliest")
        message = consumer.receive(timeout=20)
        consumer.acknowledge_cumulative(message)
        assert [each.value for each in consumer.receive_many(1, timeout=0.05)] == []
        return message.data

    assert asyncio.run(cell()) == b"one"


def test_a_callback_that_would_wait_for_itself_is_refused(client: anabranch.Client) -> None:
    refusals: list[Exception] = []

    def assigned(*_: object) -> None:
        try:
            client.layout("orders")
        except InvalidConfigurationError as error:
            refusals.append(error)

    client.create_producer("orders").send(b"one")
    client.subscribe_stream("orders", "s", initial_position="earliest", on_assignment=assigned).receive(20)
    assert "await AsyncClient.layout" in str(refusals[0])


def test_many_threads_may_share_a_producer_and_a_consumer(client: anabranch.Client) -> None:
    producer = client.create_producer("orders")
    consumer = client.subscribe_queue("orders", "q", initial_position="earliest")

    def publish(thread: int) -> None:
        for number in range(300):
            producer.enqueue(b"%d" % number, key=f"thread-{thread}")

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    seen: dict[str | None, list[int]] = defaultdict(list)
    lock = threading.Lock()

    def consume() -> None:
        try:
            while True:
                message = consumer.receive(timeout=3)
                with lock:
                    seen[message.key].append(int(message.data))
                consumer.acknowledge(message)
        except ReceiveTimeoutError:
            pass

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key: sorted(numbers) for key, numbers in seen.items()} == {
        f"thread-{n}": list(range(300)) for n in range(4)
    }


def test_a_checkpoint_counts_only_what_an_iteration_has_yielded(client: anabranch.Client) -> None:
    with client.create_producer("orders") as producer:
        producer.send_many([b"%d" % n for n in range(1000)], keys=[f"k{n % 50}" for n in range(1000)])
    read: list[int] = []
    checkpoint = anabranch.Checkpoint.earliest()
    for stop in (1, 2, 77, 300, 301, 999, 1000):
        with client.create_checkpoint_consumer("orders", start=checkpoint) as consumer:
            for message in consumer:
                read.append(int(message.data))
                if len(read) == stop:
                    break
            checkpoint = consumer.checkpoint()
    assert sorted(read) == list(range(1000))


def test_an_iteration_that_was_left_can_be_taken_up_again(client: anabranch.Client) -> None:
    with client.create_producer("orders") as producer:
        producer.send_many([b"%d" % n for n in range(100)], keys=["k"] * 100)
    consumer = client.subscribe_stream("orders", "s", initial_position="earliest")
    first = [next(consumer) for _ in range(10)]
    consumer.acknowledge_cumulative(first[-1])
    second = consumer.receive(timeout=5)
    third = consumer.receive_many(1000, timeout=5)
    assert [int(m.data) for m in (*first, second, *third)] == list(range(11 + len(third)))
    consumer.close()
    assert list(consumer) == []
    again = client.subscribe_stream("orders", "s")
    assert again.receive(timeout=5).value == b"10"


def test_closing_from_another_thread_ends_an_iteration(client: anabranch.Client) -> None:
    consumer = client.subscribe_stream("orders", "s")
    timer = threading.Timer(0.3, consumer.close)
    timer.start()
    assert list(consumer) == []
    with pytest.raises(AlreadyClosedError):
        consumer.receive()


def test_flush_raises_only_failures_that_the_caller_has_not_seen(
    broker: BrokerProcess, client: anabranch.Client
) -> None:
    producer = client.create_producer("orders", send_timeout=2)
    producer.send(b"ok", key="k")
    broker.kill()
    seen = producer.enqueue(b"a", key="k")
    with pytest.raises(SendTimeoutError):
        seen.result(timeout=10)
    producer.flush()
    producer.enqueue(b"b", key="k")
    with pytest.raises(SendTimeoutError):
        producer.flush()
    with pytest.raises(TypeError):
        producer.enqueue("text", key="k")  # type: ignore[arg-type]
    producer.close(timeout=0)
    with pytest.raises(AlreadyClosedError):
        producer.enqueue(b"c")
    client.shutdown()


def test_processing_and_giving_back(client: anabranch.Client) -> None:
    producer = client.create_producer("orders", schema=anabranch.Schema.string())
    producer.send("hello", key="k")
    consumer = client.subscribe_queue(
        "orders", "q", schema=anabranch.Schema.string(), initial_position="earliest"
    )
    first = consumer.receive(timeout=5)
    consumer.negative_acknowledge(first, delay=0)
    again = consumer.receive(timeout=5)
    assert (again.value, again.redelivery_count) == ("hello", 1)
    with consumer.processing(again):
        pass
    consumer.flush_acks()
    with pytest.raises(ReceiveTimeoutError):
        consumer.receive(timeout=0.3)


def test_a_message_of_another_topic_is_refused_in_the_thread_of_its_caller(client: anabranch.Client) -> None:
    for topic in ("orders", "others"):
        client.create_producer(topic).send_many([b"0", b"1"], keys=["k", "k"])
    queue = client.subscribe_queue("orders", "q", initial_position="earliest")
    stream = client.subscribe_stream("orders", "s", initial_position="earliest")
    message = client.subscribe_queue("others", "q", initial_position="earliest").receive(timeout=10)
    for refuse in (queue.acknowledge, stream.acknowledge_cumulative):
        with pytest.raises(InvalidConfigurationError, match="is one of topic://public/default/others"):
            refuse(message)
    # A message counts for every consumer of its own topic.
    queue.acknowledge(stream.receive(timeout=10))
    queue.close()
    again = client.subscribe_queue("orders", "q")
    assert [message.data for message in again.receive_many(2, timeout=10)] == [b"1"]


def test_a_consumer_of_several_topics_may_be_dropped_while_it_is_open(
    client: anabranch.Client, caplog: pytest.LogCaptureFixture
) -> None:
    for topics in (["orders", "others"], re.compile("or.*")):
        assert client.subscribe_topics(topics, "s").topics
        gc.collect()
    client.close()
    gc.collect()
    assert not caplog.records, "asyncio reports tasks that are destroyed before they end"


def test_a_key_that_cannot_be_sent_is_refused_and_costs_no_other_message(client: anabranch.Client) -> None:
    producer = client.create_producer("orders", batching=anabranch.Batching(max_delay=0.2))
    before = producer.enqueue(b"before")
    for refused in (
        lambda: producer.enqueue(b"v", key="\ud800"),
        lambda: producer.send_many([b"v"], ["\ud800"]),
    ):
        with pytest.raises(InvalidConfigurationError, match="a key must be text"):
            refused()
    after = producer.enqueue(b"after", key="schlüssel")
    assert before.result(10) != after.result(10)


def test_calls_that_take_messages_ahead_keep_their_order_and_leave_the_others_to_a_run(
    client: anabranch.Client,
) -> None:
    count = 3000
    with client.create_producer("orders") as producer:
        producer.send_many([b"%d" % n for n in range(count)], keys=["k"] * count)
    consumer = client.subscribe_stream("orders", "s", initial_position="earliest")
    read = [int(consumer.receive(timeout=20).data) for _ in range(500)]
    read += [int(message.data) for message in consumer.receive_many(10, timeout=20)]
    read += [int(next(consumer).data) for _ in range(5)]
    done = threading.Event()

    def handle(message: anabranch.Message[bytes]) -> None:
        read.append(int(message.data))
        if len(read) == count:
            done.set()

    consumer.run(handle, concurrency=1, stop=done)
    assert read == list(range(count))


def test_a_run_begins_while_another_thread_receives(client: anabranch.Client) -> None:
    consumer = client.subscribe_queue("orders", "q", initial_position="earliest")
    producer, read, done = client.create_producer("orders"), list[bytes](), threading.Event()

    def take(message: anabranch.Message[bytes]) -> None:
        read.append(message.data)
        if len(read) == 200:
            done.set()

    def receive() -> None:
        while not done.is_set():
            for message in consumer.receive_many(1, timeout=0.01):
                take(message)

    receiving = threading.Thread(target=receive)
    receiving.start()
    producer.send_many([b"%d" % n for n in range(100)])
    running = threading.Thread(target=lambda: consumer.run(take, stop=done))
    running.start()
    producer.send_many([b"%d" % n for n in range(100, 200)])
    for thread in (receiving, running):
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(map(int, read)) == list(range(200))
