"""The consumer of one segment: which events make it subscribe again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from anabranch.aio import TaskRegistry
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.permits import Permits
from anabranch.client.schema import BYTES
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.fakes import FakePool, settle_down


async def test_a_new_assignment_does_not_hide_that_the_broker_ended_the_subscription() -> None:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answers: list[Any] = [answer]
    pool = FakePool(lambda _: answers.pop(0) if answers else pb.CommandSuccess(request_id=1))
    tasks = TaskRegistry()
    owner: Any = SimpleNamespace(
        pool=pool,
        tasks=tasks,
        loop=asyncio.get_running_loop(),
        schema=BYTES,
        opened_in=None,
        vector=lambda _: (),
    )
    events: Any = SimpleNamespace(voided=lambda _: None, dropped=lambda _: None)
    attachment = Attachment("s", pb.CommandSubscribe.Exclusive, "me")
    consumer = SegmentConsumer(owner, events, SegmentAddress(0, "segment", False), attachment, Permits(10))
    await settle_down()
    # The broker's answer, the end of the subscription and an assignment arrive together.
    answer.set_result(pb.CommandSuccess(request_id=1))
    (connection,) = pool.connections
    connection.consumers.clear()
    consumer.acks.add((1, 5), 0)
    consumer.closed_by_broker()
    consumer.renew(2)
    assert consumer.acks.confirmed, "the acknowledgement is not sent: the entry may be delivered again"
    await settle_down()
    assert list(connection.consumers.values()) == [consumer], "it has subscribed again"
    await tasks.stop()
