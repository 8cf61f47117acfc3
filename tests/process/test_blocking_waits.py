"""Every call of the blocking client returns within its timeout, on brokers that are gone or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pytest

import anabranch
from anabranch.errors import AlreadyClosedError, OperationTimeoutError, ReceiveTimeoutError
from simulation.harness.process import BrokerProcess
from tests.harness.public import methods

T = TypeVar("T")

OPERATION_S = 2.0
CLOSE_S = 1.0
PATIENCE_S = 30.0
"""Far above every timeout of these tests, for a machine that is busy with other work."""

NEVER_WAIT = {
    "layout": "see test_waits",
    "topic_schema": "see test_waits",
    "topics": "see test_waits",
    "processing": "acknowledges",
    "checkpoint": "answers at once",
    "negative_acknowledge": "answers at once",
    "reconsume_later": "see test_waits",
    "release_parked": "answers at once",
    "pause": "answers at once",
    "resume": "answers at once",
}


def patiently(call: Callable[[], T]) -> T:
    """Repeat a call that a busy machine did not carry out within the short timeout of these tests."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except OperationTimeoutError:
            if time.monotonic() > deadline:
                raise


def client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "anabranch client"}


class Objects:
    """A client and one object of each kind that it creates; each consumer has a buffered message."""

    def __init__(self, url: str) -> None:
        self.client = anabranch.Client(url, operation_timeout=OPERATION_S, connect_timeout=1.0)
        client, earliest = self.client, {"initial_position": "earliest", "ack_receipts": True}
        self.producer = patiently(lambda: client.create_producer("orders", send_timeout=OPERATION_S))
        patiently(lambda: self.producer.send_many([b"one", b"two"], keys=["a", "b"]))
        self.stream: Any = patiently(lambda: client.subscribe_stream("orders", "s", **earliest))  # type: ignore[arg-type]
        self.queue: Any = patiently(lambda: client.subscribe_queue("orders", "q", **earliest))  # type: ignore[arg-type]
        self.leaving: Any = patiently(lambda: client.subscribe_stream("orders", "leaving"))
        self.leaving_queue: Any = patiently(lambda: client.subscribe_queue("orders", "leaving queue"))
        self.topics: Any = patiently(lambda: client.subscribe_topics(["orders"], "t"))
        self.checkpoints = patiently(lambda: client.create_checkpoint_consumer("orders", group="g"))
        self.streamed = self.stream.receive(timeout=PATIENCE_S)
        self.queued = self.queue.receive(timeout=PATIENCE_S)

    def waiting_calls(self) -> dict[str, Callable[[], Any]]:
        """The calls to make side by side, by the name of the class and the method."""
        client, producer, stream, queue = self.client, self.producer, self.stream, self.queue
        return {
            "Client.create_producer": lambda: client.create_producer("orders", name="me"),
            "Client.subscribe_stream": lambda: client.subscribe_stream("orders", "other"),
            "Client.subscribe_queue": lambda: client.subscribe_queue("orders", "other"),
            "Client.subscribe_topics": lambda: client.subscribe_topics(["orders"], "other"),
            "Client.create_checkpoint_consumer": lambda: client.create_checkpoint_consumer("orders"),
            "Producer.send": lambda: producer.send(b"x", key="a"),
            "Producer.enqueue": lambda: producer.enqueue(b"x", key="a").result(),
            "Producer.send_many": lambda: producer.send_many([b"x"], keys=["a"]),
            "Producer.enqueue_many": lambda: producer.enqueue_many([b"x"], keys=["a"]).result(),
            "Producer.flush": lambda: producer.flush(timeout=OPERATION_S),
            "StreamConsumer.receive": lambda: stream.receive(timeout=1),
            "StreamConsumer.receive_many": lambda: stream.receive_many(1, timeout=1),
            "StreamConsumer.acknowledge_cumulative": lambda: stream.acknowledge_cumulative(self.streamed),
            "StreamConsumer.flush_acks": lambda: stream.flush_acks(),
            "StreamConsumer.run": lambda: stream.run(lambda message: None, stop=1),
            "StreamConsumer.seek": lambda: stream.seek("earliest"),
            "StreamConsumer.unsubscribe": lambda: self.leaving.unsubscribe(),
            "QueueConsumer.receive": lambda: queue.receive(timeout=1),
            "QueueConsumer.receive_many": lambda: queue.receive_many(1, timeout=1),
            "QueueConsumer.acknowledge": lambda: queue.acknowledge(self.queued),
            "QueueConsumer.flush_acks": lambda: queue.flush_acks(),
            "QueueConsumer.run": lambda: queue.run(lambda message: None, stop=1),
            "QueueConsumer.seek": lambda: queue.seek("earliest"),
            "QueueConsumer.unsubscribe": lambda: self.leaving_queue.unsubscribe(),
            "TopicsConsumer.receive": lambda: self.topics.receive(timeout=1),
            "TopicsConsumer.receive_many": lambda: self.topics.receive_many(1, timeout=1),
            "TopicsConsumer.seek": lambda: self.topics.seek("earliest"),
            "CheckpointConsumer.commit": lambda: self.checkpoints.commit(),
            "CheckpointConsumer.receive": lambda: self.checkpoints.receive(timeout=1),
            "CheckpointConsumer.receive_many": lambda: self.checkpoints.receive_many(1, timeout=1),
        }

    def closing_calls(self) -> dict[str, Callable[[], Any]]:
        return {
            "Producer.close": lambda: self.producer.close(timeout=CLOSE_S),
            "StreamConsumer.close": lambda: self.stream.close(timeout=CLOSE_S),
            "QueueConsumer.close": lambda: self.queue.close(timeout=CLOSE_S),
            "TopicsConsumer.close": lambda: self.topics.close(timeout=CLOSE_S),
            "CheckpointConsumer.close": lambda: self.checkpoints.close(timeout=CLOSE_S),
            "Client.close": lambda: self.client.close(timeout=CLOSE_S),
            "Client.shutdown": lambda: self.client.shutdown(),
        }


def call_all(calls: dict[str, Callable[[], Any]]) -> list[str]:
    """Make the calls concurrently; return the names of those that did not fail with a clear error."""

    def call(one: Callable[[], Any]) -> None:
        try:
            one()
        except* (OperationTimeoutError, ReceiveTimeoutError):
            # A flush raises the errors of several batches as one group.
            pass

    threads = {name: threading.Thread(target=call, args=(one,), daemon=True) for name, one in calls.items()}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads.values():
        thread.join(max(deadline - time.monotonic(), 0.0))
    return [name for name, thread in threads.items() if thread.is_alive()]


@pytest.mark.parametrize("away", ["gone", "stopped"])
def test_every_call_returns(make_broker: Callable[..., BrokerProcess], away: str) -> None:
    broker = make_broker().start()
    others = client_threads()
    objects = Objects(broker.url)
    waiting, closing = objects.waiting_calls(), objects.closing_calls()
    for kind in (anabranch.Client, anabranch.Producer, anabranch.StreamConsumer, anabranch.QueueConsumer):
        for name in methods(kind).keys() - NEVER_WAIT.keys():
            assert f"{kind.__name__}.{name}" in {**waiting, **closing}
    (thread,) = client_threads() - others
    if away == "gone":
        broker.kill()
    else:
        os.kill(broker.pid, signal.SIGSTOP)
    assert call_all(waiting) == []
    for name, call in closing.items():
        assert call_all({name: call}) == [], name
    assert objects.client.closed
    for call in (*waiting.values(), lambda: next(objects.stream)):
        with pytest.raises((AlreadyClosedError, StopIteration)):
            call()
    assert objects.checkpoints.checkpoint()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    if away == "stopped":
        os.kill(broker.pid, signal.SIGCONT)


def test_a_client_that_was_dropped_ends_its_thread(make_broker: Callable[..., BrokerProcess]) -> None:
    broker = make_broker().start()
    others = client_threads()
    client = anabranch.Client(broker.url)
    client.layout("orders", create=True)
    (thread,) = client_threads() - others
    del client
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_callback_that_does_not_return_does_not_keep_the_client_open(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    broker = make_broker().start()
    called, over = threading.Event(), threading.Event()

    def stay(added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        called.set()
        over.wait(PATIENCE_S)

    client = anabranch.Client(broker.url)

    def subscribe() -> None:
        with suppress(AlreadyClosedError):
            client.subscribe_stream("orders", "s", on_assignment=stay)

    subscribing = threading.Thread(target=subscribe, daemon=True)
    subscribing.start()
    assert called.wait(PATIENCE_S)
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError, match="a callback of the application"):
        client.close(timeout=0.1)
    assert time.monotonic() - began < PATIENCE_S / 2
    over.set()
    subscribing.join(PATIENCE_S)


UNCLOSED = """
import sys, anabranch
from anabranch.errors import OperationTimeoutError
client, producer = anabranch.Client(sys.argv[1], operation_timeout=float(sys.argv[3])), None
while producer is None:
    try:
        producer = client.create_producer("orders")
    except OperationTimeoutError:
        pass
producer.send(b"0")
if sys.argv[2] == "gone":
    sys.stdin.readline() if not print("ready", flush=True) else None
for number in range(1, 6):
    producer.enqueue(b"%d" % number)
"""


def test_a_client_that_was_not_closed_completes_its_messages_when_python_ends(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    broker = make_broker().start()
    ended = subprocess.run(
        [sys.executable, "-c", UNCLOSED, broker.url, "there", str(PATIENCE_S)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert ended.returncode == 0
    assert "was not closed" in ended.stderr
    with anabranch.Client(broker.url) as client:
        reader = client.create_checkpoint_consumer("orders", start=anabranch.Checkpoint.earliest())
        found: list[bytes] = []
        while len(found) < 6 and (some := reader.receive_many(10, timeout=PATIENCE_S)):
            found += [message.data for message in some]
    assert sorted(found) == [b"%d" % number for number in range(6)]


def test_python_ends_in_time_without_a_broker_and_reports_messages_that_are_not_stored(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    broker = make_broker().start()
    process = subprocess.Popen(
        [sys.executable, "-c", UNCLOSED, broker.url, "gone", str(OPERATION_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    broker.kill()
    _, errors = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    assert "5 messages were not stored: the producer was closed before the message was stored" in errors
