"""A producer whose segment was sealed on Apache Pulsar reads the end of the topic to learn what is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch import Encrypt
from anabranch.client.decide.producing.outgoing import FAILED, OPEN, STORED, Outgoing
from anabranch.client.options import PublishOptions
from anabranch.client.produce.encrypting import EntryEncryption
from anabranch.client.produce.segment_producer import SegmentProducer
from anabranch.errors import AuthorizationError
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.keys import public_keys
from tests.unit.client.fakes import FakeConnection, FakeHome, FakePool, settle_down, success

LEDGER = 7
LIMIT = 2**11
"""Bytes of an entry that the broker takes."""
NOTHING = pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)


class Terminated:
    """A terminated topic of Pulsar: it keeps some of the entries that were written, and serves readers."""

    def __init__(self) -> None:
        self.pool = FakePool(self._answer)
        self.home = FakeHome(self.pool)
        self.stored: list[bytes] = []
        self.started_after: list[int] = []
        self.ends_empty = False
        """Whether an empty ledger follows the stored entries, so that the broker names no last message."""
        self.sends_at_once = 10**9
        """Entries that a reader gets before the broker falls silent."""
        self.refusal: Exception | None = None
        """Answers readers."""
        self._sought = False

    async def attach(self) -> SegmentProducer:
        segment = self.home.segment()
        await settle_down()
        self.connection.is_ours = False
        return segment

    @property
    def connection(self) -> FakeConnection:
        return self.pool.connections[-1]

    def refuse(self, sequence_id: int) -> None:
        """Answer an entry with TopicTerminated."""
        (producer_id,) = self.connection.producers
        error = pb.CommandSendError(
            producer_id=producer_id, sequence_id=sequence_id, error=pb.TopicTerminatedError, message="sealed"
        )
        self.connection.producers[producer_id].send_error(error)

    def _answer(self, message: Any) -> Any:
        if isinstance(message, pb.CommandSubscribe):
            if self.refusal is not None:
                return self.refusal
            start = message.start_message_id.entryId
            self.started_after.append(-1 if start == NO_ID else start)
            return pb.CommandSuccess(request_id=1)
        if isinstance(message, pb.CommandGetLastMessageId):
            last = len(self.stored) - 1 if self.stored else NO_ID
            end = pb.MessageIdData(ledgerId=LEDGER, entryId=last)
            if self._sought:
                # The reader was moved to a time that no message has reached.
                self._sought = False
                return pb.CommandGetLastMessageIdResponse(
                    request_id=1, last_message_id=NOTHING, consumer_mark_delete_position=end
                )
            # The position from which the reader of the tail began; others subscribe later.
            after = self.started_after[-1]
            asyncio.get_running_loop().call_later(0.001, self._deliver, message.consumer_id, after)
            return pb.CommandGetLastMessageIdResponse(
                request_id=1, last_message_id=NOTHING if self.ends_empty else end
            )
        if isinstance(message, pb.CommandSeek):
            self._sought = True
            return pb.CommandSuccess(request_id=1)
        return success()

    def _deliver(self, consumer_id: int, after: int) -> None:
        for number, data in list(enumerate(self.stored))[after + 1 :][: self.sends_at_once]:
            reader = self.connection.consumers.get(consumer_id)
            if reader is not None:
                reader.delivered(Delivery(consumer_id, LEDGER, number, -1, 0, (), None, None, None, data))

    async def send_large(self, segment: SegmentProducer) -> Outgoing:
        """Send a message that does not fit into two entries."""
        self.home.use(options=PublishOptions(chunking=True))
        self.connection.machine.max_message_bytes = LIMIT
        self.home.sequence += 1
        batch = segment.sender.begin(segment.sender.batcher.buckets[0])
        segment.sender.batcher.buckets[0].add(batch, (b"v" * (2 * LIMIT), "k", self.home.sequence, 0), 10)
        segment.sender.close_batches()
        assert len(self.connection.pump.written) >= 3, "the message should have several chunks"
        return batch


def states(batches: list[Outgoing]) -> list[object]:
    return [batch.state for batch in batches]


async def test_entries_found_in_the_sealed_topic_are_stored_and_the_others_are_free() -> None:
    topic = Terminated()
    segment = await topic.attach()
    batches = topic.home.add(segment, 4)
    topic.stored = topic.connection.pump.written[:3]
    topic.connection.receipt(0, ledger=LEDGER, entry=0)
    topic.refuse(1)
    segment.depart()
    await settle_down()
    assert states(batches) == [STORED, STORED, STORED, OPEN]
    assert topic.started_after == [0], "the reading begins behind the last confirmed entry"
    assert batches[2].place == (0, LEDGER, 2)
    assert list(segment.sender.unsent) == batches[3:]


async def test_the_topic_is_read_only_after_the_layout_confirms_the_seal() -> None:
    topic = Terminated()
    segment = await topic.attach()
    batches = topic.home.add(segment, 2)
    topic.refuse(0)
    await asyncio.sleep(5)
    assert topic.started_after == []
    topic.stored = list(topic.connection.pump.written)
    segment.depart()
    await asyncio.sleep(5)
    assert states(batches) == [STORED, STORED]


async def test_nothing_is_found_in_an_empty_topic() -> None:
    topic = Terminated()
    segment = await topic.attach()
    batches = topic.home.add(segment, 2)
    topic.refuse(0)
    segment.depart()
    await settle_down()
    assert states(batches) == [OPEN, OPEN]
    assert segment.life.settled


async def test_entries_of_other_producers_are_not_taken_for_own_ones() -> None:
    other = Terminated()
    other.home.parts.name = "other"
    theirs = await other.attach()
    other.home.add(theirs, 2)
    topic = Terminated()
    segment = await topic.attach()
    batches = topic.home.add(segment, 2)
    topic.stored = list(other.connection.pump.written)
    topic.refuse(0)
    segment.depart()
    await settle_down()
    assert states(batches) == [OPEN, OPEN]


async def test_a_lost_connection_begins_the_reading_anew() -> None:
    topic = Terminated()
    segment = await topic.attach()
    batches = topic.home.add(segment, 2)
    written = list(topic.connection.pump.written)
    topic.refuse(0)
    topic.stored = written
    segment.depart()
    topic.connection.lose()
    topic.pool.connections.clear()
    revived = await topic.pool.connection_for("segment")
    revived.is_ours = False
    await asyncio.sleep(10)
    assert states(batches) == [STORED, STORED]


async def test_entries_before_an_empty_ledger_are_found() -> None:
    topic = Terminated()
    segment = await topic.attach()
    batches = topic.home.add(segment, 3)
    topic.stored = topic.connection.pump.written[:2]
    topic.ends_empty = True
    topic.refuse(0)
    segment.depart()
    await settle_down()
    assert states(batches) == [STORED, STORED, OPEN]


async def test_a_reading_that_fails_goes_on_where_it_ended() -> None:
    topic = Terminated()
    segment = await topic.attach()
    batches = topic.home.add(segment, 5)
    topic.stored = list(topic.connection.pump.written)
    topic.sends_at_once = 2
    topic.refuse(0)
    segment.depart()
    await asyncio.sleep(5 * topic.pool.operation_timeout_s)
    assert states(batches) == [STORED] * 5
    assert topic.started_after == [-1, 1, 3]


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    ("stored", "whole"),
    [
        ([0, 1, 2], True),
        ([0, 1], False),
        ([0, 1, 0], False),
        ([0, 1, 0, 1, 2], True),
        ([0, 1, 2, 0], True),
        ([0, 2, 1], False),
    ],
)
async def test_a_message_is_stored_when_its_chunks_follow_each_other_to_the_last(
    stored: list[int], whole: bool, encrypted: bool
) -> None:
    topic = Terminated()
    if encrypted:
        made = EntryEncryption(Encrypt("app", public_keys("app")), "orders", topic.home.tasks, 30.0)
        await made.open()
        topic.home.use(encryption=made)
    segment = await topic.attach()
    batch = await topic.send_large(segment)
    chunks = topic.connection.pump.written
    last = len(chunks) - 1
    topic.stored = [chunks[{0: 0, 1: 1, 2: last}[number]] for number in stored]
    topic.refuse(0)
    segment.depart()
    await settle_down()
    assert last == 2
    assert states([batch]) == [STORED if whole else OPEN]


async def test_a_role_that_may_not_read_gets_an_error_and_no_entry_is_stored_twice() -> None:
    topic = Terminated()
    segment = await topic.attach()
    sent = topic.home.add(segment, 2)
    topic.connection.pump.room = len(topic.connection.pump.written)
    unsent = topic.home.add(segment, 1)
    topic.refusal = AuthorizationError("Client is not authorized to subscribe")
    topic.refuse(0)
    segment.depart()
    await settle_down()
    assert states(sent) == [FAILED, FAILED]
    assert states(unsent) == [OPEN], "an entry that was never sent may go to another segment"
    for batch in sent:
        assert isinstance(batch.error, AuthorizationError)
        assert "consume" in str(batch.error)
    assert segment.life.settled
