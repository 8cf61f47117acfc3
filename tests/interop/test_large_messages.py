"""Messages in chunks between the official `pulsar-client` and our client, in both directions."""

from __future__ import annotations

import hashlib

import pulsar

from anabranch import Client
from simulation.harness.process import BrokerProcess

TOPIC = "persistent://public/default/large"
SIZES = [11_000_000, 10, 6_000_000, 200_000]


def value(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest() * (SIZES[number] // 32 + 1)


def test_chunks_of_either_client_are_read_by_the_other(broker: BrokerProcess) -> None:
    theirs = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with Client(broker.url) as ours:
        their_consumer = theirs.subscribe(TOPIC, "theirs", initial_position=pulsar.InitialPosition.Earliest)
        our_consumer = ours.subscribe_stream(TOPIC, "ours", initial_position="earliest")
        our_queue = ours.subscribe_queue(TOPIC, "queue", initial_position="earliest")
        their_producer = theirs.create_producer(TOPIC, chunking_enabled=True, batching_enabled=False)
        our_producer = ours.create_producer(TOPIC, chunking=True, compression="zstd")
        for number in range(len(SIZES)):
            their_producer.send(value(number), partition_key="k")
            our_producer.send(value(number), key="k")
        for number in range(len(SIZES)):
            for _ in range(2):
                mine = our_consumer.receive(timeout=20)
                assert mine.data == value(number)
                our_consumer.acknowledge_cumulative(mine)
                queued = our_queue.receive(timeout=20)
                assert queued.data == value(number)
                our_queue.acknowledge(queued)
                message = their_consumer.receive(timeout_millis=20_000)
                assert message.data() == value(number)
                their_consumer.acknowledge(message)
        our_consumer.flush_acks()
        our_queue.flush_acks()
    theirs.close()
    with Client(broker.url) as again:
        for left in (again.subscribe_stream(TOPIC, "ours"), again.subscribe_queue(TOPIC, "queue")):
            assert left.receive_many(1, timeout=0.5) == []
