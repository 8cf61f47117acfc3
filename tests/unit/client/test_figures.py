"""`repr` and `stats` of a client and its objects."""

from __future__ import annotations

from anabranch import Checkpoint, Client
from tests.harness.cluster import TOPIC, Brokers


async def test_repr_shows_topic_subscription_and_state(brokers: Brokers) -> None:
    async with brokers.client() as client:
        assert repr(client).endswith("open>")
        producer = await client.create_producer("orders", name="me")
        assert repr(producer) == f"<AsyncProducer topic={TOPIC} name=me open>"
        stream = await client.subscribe_stream(TOPIC, "s")
        assert repr(stream) == f"<AsyncStreamConsumer topic={TOPIC} subscription=s open>"
        stream.pause()
        assert repr(stream) == f"<AsyncStreamConsumer topic={TOPIC} subscription=s paused>"
        queue = await client.subscribe_queue(TOPIC, "q")
        await queue.close()
        assert repr(queue) == f"<AsyncQueueConsumer topic={TOPIC} subscription=q closed>"
        topics = await client.subscribe_topics([TOPIC], "t")
        assert repr(topics) == f"<AsyncTopicsConsumer topics={TOPIC} subscription=t open>"
        reader = await client.create_checkpoint_consumer(TOPIC)
        assert repr(reader) == f"<AsyncCheckpointConsumer topic={TOPIC} open>"
    assert repr(client).endswith("closed>")
    assert repr(producer).endswith("closed>")


async def test_a_classic_topic_keeps_its_name_in_repr_and_stats(brokers: Brokers) -> None:
    topic = "persistent://public/default/classic"
    async with brokers.client() as client:
        stream = await client.subscribe_stream(topic, "s")
        queue = await client.subscribe_queue(topic, "q")
        reader = await client.create_checkpoint_consumer(topic)
        for consumer in (stream, queue, reader):
            assert f"topic={topic} " in repr(consumer)
        assert {one.topic for one in client.stats.consumers} == {topic}


def test_the_blocking_objects_show_their_own_class() -> None:
    client = Client("pulsar://127.0.0.1:1")
    assert repr(client) == "<Client url=pulsar://127.0.0.1:1 open>"


async def test_stats_count_what_the_application_has_and_what_waits(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, name="me")
        await producer.send_many([b"x"] * 10)
        stream = await client.subscribe_stream(TOPIC, "s", name="one", initial_position="earliest")
        reader = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        for _ in range(3):
            await stream.receive(timeout=5)
        assert len(await reader.receive_many(10, timeout=5)) == 10
        stats = client.stats
        (sent,) = stats.producers
        assert (sent.topic, sent.name, sent.state, sent.last_sequence_id) == (TOPIC, "me", "open", 9)
        assert (sent.waiting_entries, stats.waiting_bytes) == (0, 0)
        assert stats.connections == 1
        by_subscription = {one.subscription: one for one in stats.consumers}
        got = by_subscription["s"]
        assert (got.name, got.segments, got.received, got.buffered) == ("one", 1, 3, 7)
        assert by_subscription[None].received == 10
        brokers.kill()
        await producer.enqueue(b"y")
        await producer.enqueue(b"z" * 200_000)
        assert client.stats.producers[0].waiting_entries > 0
        assert client.stats.waiting_bytes > 200_000
        await client.shutdown()
