"""Interceptors see each message on its way, and a failing one changes nothing for the message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from anabranch import Backoff, Client, DeadLetter, Interceptor, Message, MessageId, SentMessage
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError, MessageTooBigError
from tests.harness.cluster import TOPIC, Brokers


class Recorder(Interceptor):
    """Writes every call down."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.receipts: list[tuple[SentMessage, MessageId | None, BaseException | None]] = []

    def before_send(self, message: SentMessage) -> None:
        self.calls.append(("before_send", message.value, message.key))
        message.properties["seen"] = "1"
        message.notes["value"] = message.value

    def on_receipt(
        self, message: SentMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        self.receipts.append((message, message_id, error))

    def on_receive(self, message: Message[Any]) -> None:
        self.calls.append(("on_receive", message.data))

    @contextmanager
    def handling(self, message: Message[Any]) -> Iterator[None]:
        self.calls.append(("begin", message.data))
        try:
            yield
        except ValueError as error:
            self.calls.append(("failed", str(error)))
            raise
        finally:
            self.calls.append(("end", message.data))

    def on_acknowledge(self, message: Message[Any] | MessageId) -> None:
        self.calls.append(("on_acknowledge", getattr(message, "data", message)))

    def on_negative_acknowledge(self, message: Message[Any] | MessageId, reason: str) -> None:
        self.calls.append(("on_negative_acknowledge", getattr(message, "data", message), reason))

    def on_close(self, topic: str) -> None:
        self.calls.append(("on_close", topic))


class Broken(Interceptor):
    """Fails everywhere, after it has spoiled the properties."""

    def before_send(self, message: SentMessage) -> None:
        message.properties["broken"] = 7  # type: ignore[assignment]

    def on_receipt(self, *arguments: Any) -> None:
        raise RuntimeError("on_receipt")

    def on_receive(self, message: Message[Any]) -> None:
        raise RuntimeError("on_receive")

    @contextmanager
    def handling(self, message: Message[Any]) -> Iterator[None]:
        if message.data == b"a":
            raise RuntimeError("handling, before")
        yield
        raise RuntimeError("handling, after")

    def on_acknowledge(self, message: Message[Any] | MessageId) -> None:
        raise RuntimeError("on_acknowledge")

    def on_negative_acknowledge(self, message: Message[Any] | MessageId, reason: str) -> None:
        raise RuntimeError("on_negative_acknowledge")

    def on_close(self, topic: str) -> None:
        raise RuntimeError("on_close")


async def test_each_step_of_a_message_is_seen_once(brokers: Brokers) -> None:
    ours = Recorder()
    async with brokers.client(interceptors=[ours]) as client:
        producer = await client.create_producer(TOPIC)
        stored = await producer.send(b"a", key="k", properties={"own": "2"})
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        message = await consumer.receive(timeout=5)
        assert message.properties == {"own": "2", "seen": "1"}
        await consumer.negative_acknowledge(message, delay=0, reason="not yet")
        again = await consumer.receive(timeout=5)
        await consumer.acknowledge(again)
        await consumer.acknowledge(again.id)
        await producer.close()
        await producer.close()
        await consumer.close()
        assert ours.calls == [
            ("before_send", b"a", "k"),
            ("on_receive", b"a"),
            ("on_negative_acknowledge", b"a", "not yet"),
            ("on_receive", b"a"),
            ("on_acknowledge", b"a"),
            ("on_acknowledge", again.id),
            ("on_close", TOPIC),
            ("on_close", TOPIC),
        ]
        ((sent, message_id, error),) = ours.receipts
        assert (sent.notes, message_id, error) == ({"value": b"a"}, stored, None)


async def test_lists_of_messages_are_seen_one_by_one(brokers: Brokers) -> None:
    ours = Recorder()
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, interceptors=[ours])
        await producer.send_many([b"a", b"b"], keys=["k", None])
        assert [call[1:] for call in ours.calls] == [(b"a", "k"), (b"b", None)]
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest", interceptors=[ours])
        found = await consumer.receive_many(2, timeout=5)
        assert [message.properties for message in found] == [{"seen": "1"}] * 2
        await consumer.acknowledge_cumulative(found[-1])
        assert ours.calls[2:] == [
            ("on_receive", found[0].data),
            ("on_receive", found[1].data),
            ("on_acknowledge", found[1].data),
        ]
        assert {message_id for _, message_id, _ in ours.receipts} == {
            replace(message.id, vector=()) for message in found
        }


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_handlers_run_inside_the_context(brokers: Brokers, kind: str) -> None:
    ours = Recorder()
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send(b"a", key="k")
        options: Any = {"initial_position": "earliest", "interceptors": [ours]}
        subscribe: Any = client.subscribe_stream if kind == "stream" else client.subscribe_queue
        consumer = await subscribe(TOPIC, "s", dead_letter=DeadLetter(1), **options)

        async def handle(message: Message[bytes]) -> None:
            ours.calls.append(("handler", message.redelivery_count))
            raise ValueError("no cup")

        await consumer.run(handle, retry=Backoff(0.1, 0.1), stop=5)
        steps = [call for call in ours.calls if call[0] not in ("on_receive", "on_close")]
        attempt = [("begin", b"a"), ("failed", "no cup"), ("end", b"a")]
        refused = ("on_negative_acknowledge", b"a", "ValueError: no cup")
        assert steps == [
            attempt[0],
            ("handler", 0),
            *attempt[1:],
            refused,
            attempt[0],
            ("handler", 1),
            *attempt[1:],
            refused,
            ("on_acknowledge", b"a"),
        ]


async def test_a_failing_interceptor_loses_nothing_and_is_logged_once(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Recorder()
    async with brokers.client(interceptors=[Broken(), ours]) as client:
        producer = await client.create_producer(TOPIC)
        for value in (b"a", b"b", b"c"):
            await producer.send(value, properties={"own": "2"})
        await producer.send_many([b"d", b"e"])
        consumer = await client.subscribe_queue(TOPIC, "q", initial_position="earliest")
        handled: list[Any] = []

        async def handle(message: Message[bytes]) -> None:
            handled.append((message.data, dict(message.properties)))
            if len(handled) == 2:
                raise ValueError("no cup")

        statistics = await consumer.run(handle, retry=Backoff(0.1, 0.1), stop=5)
        assert (statistics.handled, statistics.failed) == (5, 1)
        assert sorted({data for data, _ in handled}) == [b"a", b"b", b"c", b"d", b"e"]
        assert all("broken" not in properties for _, properties in handled)
        assert [error for _, _, error in ours.receipts] == [None] * 5
    reported = [
        record.message.split(" of the ")[0] for record in caplog.records if "Broken" in record.message
    ]
    assert sorted(reported) == sorted(
        [
            *("before_send", "on_receipt", "on_receive", "handling", "on_acknowledge"),
            *("on_negative_acknowledge", "on_close", "on_close"),
        ]
    ), "once for each method of a producer or consumer"


async def test_the_outcome_of_a_message_that_is_not_sent_is_reported(brokers: Brokers) -> None:
    ours = Recorder()
    async with brokers.client(interceptors=[ours]) as client:
        producer = await client.create_producer(TOPIC)
        large = bytes(producer.message_bytes_max + 1)
        with pytest.raises(MessageTooBigError):
            await producer.send(large)
        with pytest.raises(MessageTooBigError):
            await producer.send_many([b"a", large])
        assert [type(error) for _, _, error in ours.receipts] == [MessageTooBigError] * 3
        with pytest.raises(InvalidConfigurationError):
            await producer.send(b"a", sequence_id=-1)
        assert len(ours.calls) == 3, "a wrong argument is refused before interceptors see it"
        brokers.kill()
        waiting = await producer.enqueue(b"late")
        await producer.close(timeout=0)
        with pytest.raises(AlreadyClosedError):
            await waiting
        assert isinstance(ours.receipts[-1][2], AlreadyClosedError)


async def test_receipts_follow_messages_through_a_split(brokers: Brokers) -> None:
    ours = Recorder()
    async with brokers.client(interceptors=[ours]) as client:
        producer = await client.create_producer(TOPIC)
        futures = [await producer.enqueue(b"%d" % number, key=f"k{number}") for number in range(20)]
        await (await brokers.controller()).split(0)
        futures += [await producer.enqueue(b"%d" % number, key=f"k{number}") for number in range(20)]
        expected = [await future for future in futures]
        assert sorted(map(str, expected)) == sorted(str(message_id) for _, message_id, _ in ours.receipts)


def test_only_interceptors_are_taken() -> None:
    with pytest.raises(InvalidConfigurationError):
        Client("pulsar://127.0.0.1:1", interceptors=[print])  # type: ignore[list-item]
