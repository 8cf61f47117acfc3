"""The tails of segments, and places in them: what bulk readers ask before they read.

An Anabranch broker converts between message indexes, message ids, times and the cursors of subscriptions.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from anabranch.client.bulk.raw_subscription import OpenTails, RawSubscription
from anabranch.client.bulk.segment_reader import INDEX_MAX, UNNUMBERED
from anabranch.errors import AlreadyClosedError, RemoteProtocolError, UnsupportedFeatureError
from anabranch.model.ids import MessageId
from anabranch.protocol.pb import pulsar_pb2 as pb


class SegmentTail(NamedTuple):
    """The messages in a segment now: `first_index` up to but not including `next_index`."""

    first_index: int
    next_index: int
    sealed: bool
    log_id: int | None = None
    """Tells the log from an earlier or later one of the same name; None if the broker does not tell."""


class SegmentPlace(NamedTuple):
    """A message by its index, and by its entry and its number in the entry; the end has a place, too."""

    index: int  # type: ignore[assignment]  # a position in the segment here, not a tuple's method
    ledger: int
    entry: int
    batch_index: int
    message_count: int
    """Messages in the entry; 0 at the end."""


class SegmentTails(OpenTails):
    """Asks for the tails of segments repeatedly, through one subscription per segment."""

    async def tail(self, topic: str) -> SegmentTail:
        """The messages in a segment now."""
        reply = await self._retry(topic, pb.CommandGetLastMessageId())
        log_id = reply.log_id if reply.HasField("log_id") else None
        return SegmentTail(reply.first_index, reply.next_index, reply.sealed, log_id)

    async def tails(self, topics: list[str]) -> dict[str, SegmentTail]:
        """The messages in several segments, asked at the same time."""
        found = await asyncio.gather(*(self.tail(topic) for topic in topics))
        return dict(zip(topics, found, strict=True))

    async def at_time(self, topic: str, time_ms: int) -> SegmentPlace:
        """The first message that was published at this time or later, or the end."""
        return await self._find(topic, pb.CommandGetLastMessageId(find_time_ms=max(time_ms, 0)))

    async def at_index(self, topic: str, index: int) -> SegmentPlace:
        """The message with an index; the first stored one if it was removed, the end if it is not stored."""
        return await self._find(topic, pb.CommandGetLastMessageId(find_index=index))

    async def after_id(self, topic: str, id_: MessageId) -> SegmentPlace:
        """The message after an id."""
        ledger, entry = id_.ledger & (2**64 - 1), id_.entry & (2**64 - 1)
        wire = pb.MessageIdData(ledgerId=ledger, entryId=entry, batch_index=id_.batch_index)
        return await self._find(topic, pb.CommandGetLastMessageId(find_id=wire))

    async def unacknowledged(self, topic: str, subscription: str) -> SegmentPlace | None:
        """The first message that a subscription has not acknowledged; None if the segment lacks it."""
        question = pb.CommandGetLastMessageId(find_subscription=subscription)
        return _place(await self._retry(topic, question))

    async def _find(self, topic: str, question: pb.CommandGetLastMessageId) -> SegmentPlace:
        found = _place(await self._retry(topic, question))
        if found is None:
            raise UnsupportedFeatureError("the broker is too old to find messages by time, index or id")
        return found

    async def stored_at(self, topic: str, index: int) -> int | None:
        """When the broker stored a message, or the next one that is still there; None if there is none."""
        reply = await self._retry(topic, pb.CommandGetLastMessageId(time_of_index=index))
        return reply.time_ms if reply.HasField("time_ms") else None

    async def stored_after(self, topic: str, time_ms: int) -> int | None:
        """The first index that was stored after a time, or the end; None if the broker does not tell."""
        reply = await self._retry(topic, pb.CommandGetLastMessageId(index_after_ms=max(0, time_ms)))
        return reply.index_after if reply.HasField("index_after") else None

    async def _retry(
        self, topic: str, question: pb.CommandGetLastMessageId
    ) -> pb.CommandGetLastMessageIdResponse:
        if self._closed:
            raise AlreadyClosedError("this SegmentTails is closed; open another one")
        return await self._pool.retry(lambda: self._ask(topic, question), f"asking for the tail of {topic}")

    async def _ask(
        self, topic: str, question: pb.CommandGetLastMessageId
    ) -> pb.CommandGetLastMessageIdResponse:
        subscription = self._subscriptions.get(topic)
        if subscription is None or subscription.connection is None:
            subscription = RawSubscription(self._pool, topic)
            connection = await subscription.subscribe(None)
            self._subscriptions[topic] = subscription
        else:
            connection = subscription.connection
        question.consumer_id, question.request_id = subscription.consumer_id, self._pool.next_id()
        reply = await connection.request(
            question, pb.CommandGetLastMessageIdResponse, self._pool.operation_timeout_s
        )
        if not reply.HasField("next_index"):
            raise UnsupportedFeatureError(UNNUMBERED)
        if not reply.first_index <= reply.next_index <= INDEX_MAX or reply.found_index > reply.next_index:
            raise RemoteProtocolError(
                f"the broker numbers messages of {topic} from {reply.first_index} to {reply.next_index}"
            )
        return reply


def _place(reply: pb.CommandGetLastMessageIdResponse) -> SegmentPlace | None:
    if not reply.HasField("found_index"):
        return None
    id_ = reply.found_id
    return SegmentPlace(reply.found_index, id_.ledgerId, id_.entryId, id_.batch_index, id_.batch_size)
