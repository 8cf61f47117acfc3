"""A sender of ready-made entries to a topic of Apache Pulsar: names, repetitions and silence."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client.bulk.entry_sender import EntrySender, ReadyEntry
from anabranch.errors import NotConnectedError, OperationTimeoutError
from anabranch.protocol.commands import NO_ID, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.fakes import FakePool

ENTRY = ReadyEntry(b"rows 4 to 9", 3, 9, 4)


def registered(message: Any) -> Any:
    return pb.CommandProducerSuccess(request_id=1, producer_name="sink", last_sequence_id=3)


async def opened() -> tuple[EntrySender, Any]:
    pool: Any = FakePool(registered)
    sender = EntrySender(pool, "persistent://public/default/log", "sink", on_pulsar=True)
    await sender.open(None)
    return sender, pool.connections[0]


async def test_the_sender_knows_the_highest_id_that_the_topic_accepted() -> None:
    sender, _ = await opened()
    assert (sender.own, sender.known) == (3, 3)


async def test_the_topic_recognises_an_entry_by_its_lowest_id() -> None:
    sender, _ = await opened()
    sender.send(ENTRY)
    sender.receipt(SendReceipt(1, 4, 9, 7, 0))
    await sender.wait_until(0)
    assert sender.answered == 1


async def test_an_entry_that_was_stored_before_ends_the_sender() -> None:
    sender, _ = await opened()
    sender.send(ENTRY)
    sender.receipt(SendReceipt(1, 4, 9, NO_ID, NO_ID))
    with pytest.raises(NotConnectedError, match="had stored 4 before"):
        await sender.wait_until(0)
    assert sender.answered == 0


async def test_a_topic_that_answers_nothing_ends_the_attempt() -> None:
    sender, _ = await opened()
    sender.send(ENTRY)
    with pytest.raises(OperationTimeoutError, match="answered no entry"):
        await sender.wait_until(0)
