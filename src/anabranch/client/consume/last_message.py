"""Finding the last message of a segment, which takes as many attempts as the connection needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.aio import is_transient
from anabranch.client.consume.segment_consumer import SegmentConsumer
from anabranch.client.decide.ordering import before_first
from anabranch.client.net.reconnector import RECONNECT
from anabranch.errors import AlreadyClosedError, AnabranchError
from anabranch.model.ids import MessageId
from anabranch.protocol.pb import pulsar_pb2 as pb


async def last_message(source: SegmentConsumer, reads: Callable[[], bool]) -> MessageId:
    """The last message in the segment now, or the place before the first.

    Raises AlreadyClosedError when `reads` says that the consumer does not read the segment any more.
    """
    failures = 0
    while True:
        reply: pb.CommandGetLastMessageIdResponse | None = None
        try:
            reply = await source.ask_last_message()
        except AnabranchError as error:
            if not is_transient(error):
                raise
        if not reads():
            raise AlreadyClosedError(f"this consumer does not read {source.topic} any more")
        if reply is not None:
            return _from_wire(source.segment_id, reply)
        await asyncio.sleep(RECONNECT.delay(failures, source.home.pool.rng))
        failures += 1


def _from_wire(segment: int, reply: pb.CommandGetLastMessageIdResponse) -> MessageId:
    last = reply.last_message_id
    next_index = reply.next_index if reply.HasField("next_index") else -1
    if last.ledgerId >= 2**63 or last.entryId >= 2**63:
        return before_first(segment, next_index)
    return MessageId(segment, last.ledgerId, last.entryId, last.batch_index, next_index=next_index)
