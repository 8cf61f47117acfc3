"""The append path of one producer, against a log whose answers a test gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.errors import PersistenceError
from anabranch.ledger.storage import AppendDone, Entry
from anabranch.model.ids import Position
from anabranch.protocol.commands import NO_ID, Send
from anabranch.protocol.hot_frames import encode_receipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.wire import single


class FakeLink:
    """Keeps the written bytes."""

    address = client_version = ""
    writable = wants_entry_metadata = hears_end_of_topic = True

    def __init__(self) -> None:
        self.publish_bytes = 0
        self.throttled = False
        self.sent: list[bytes | Message] = []

    def write(self, buffer: bytes) -> None:
        self.sent.append(buffer)

    def deliver(self, buffers: Sequence[bytes]) -> None:
        self.sent += buffers

    def send(self, command: Message) -> None:
        self.sent.append(command)

    def resume_if_room(self) -> None:
        return

    def forget_producer(self, producer_id: int) -> None:
        return

    def forget_consumer(self, consumer_id: int) -> None:
        return

    async def alive(self) -> bool:
        return True


class FakeLog:
    """Takes entries and answers when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[AppendDone] = []
        self.stored = 0

    def append(self, data: bytes, count: int, timestamp_ms: int, done: AppendDone, *_: Any) -> None:
        self.waiting.append(done)

    def commit(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(Entry(Position(1, self.stored), self.stored, self.stored, 1, 0, b""), None)
            self.stored += 1

    def fail(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(None, PersistenceError("no space left"))


def make() -> tuple[ServedProducer, FakeLog, FakeLink]:
    log, link = FakeLog(), FakeLink()
    return ServedProducer(link, 7, "p", log), log, link  # type: ignore[arg-type]


def send(sequence_id: int) -> Send:
    return Send(7, sequence_id, 1, 0, False, False, 0, 0, single(b"x", sequence_id))


def test_receipts_leave_when_the_log_says_so_and_the_bytes_are_counted_meanwhile() -> None:
    producer, log, link = make()
    producer.publish(send(0), 1)
    producer.publish(send(1), 1)
    assert link.sent == []
    assert link.publish_bytes > 200
    assert not producer.idle
    log.commit()
    assert link.sent == [encode_receipt(7, 0, 0, 1, 0), encode_receipt(7, 1, 0, 1, 1)]
    assert link.publish_bytes == 0
    assert producer.idle


def test_a_duplicate_of_an_entry_that_failed_is_no_duplicate() -> None:
    producer, log, link = make()
    producer.publish(send(4), 1)
    producer.publish(send(4), 1)
    log.fail()
    first, second, closed = link.sent
    assert isinstance(first, pb.CommandSendError)
    assert isinstance(second, pb.CommandSendError)
    assert {first.error, second.error} == {pb.PersistenceError}
    assert isinstance(closed, pb.CommandCloseProducer), "its client opens another one and repeats both"


def test_a_duplicate_waits_for_the_entries_before_it() -> None:
    producer, log, link = make()
    producer.recognise(3)
    producer.publish(send(4), 1)
    producer.publish(send(2), 1)
    assert link.sent == []
    log.commit()
    assert link.sent == [encode_receipt(7, 4, 0, 1, 0), encode_receipt(7, 2, 0, NO_ID, NO_ID)]


def test_a_duplicate_with_nothing_before_it_is_answered_at_once() -> None:
    producer, _, link = make()
    producer.recognise(3)
    producer.publish(send(2), 1)
    assert link.sent == [encode_receipt(7, 2, 0, NO_ID, NO_ID)]


def test_idle_is_told_once_everything_is_answered() -> None:
    producer, log, _ = make()
    told: list[str] = []
    producer.when_idle(lambda: told.append("at once"))
    producer.publish(send(0), 1)
    producer.when_idle(lambda: told.append("later"))
    producer.when_idle(lambda: told.append("also"))
    assert told == ["at once"]
    log.commit()
    assert told == ["at once", "later", "also"]
