"""The stream consumer: its share of a topic in key order, acknowledged cumulatively.

It is a member of its subscription's group, whose leader assigns segments to it.
"""

from __future__ import annotations

import math
from typing import TypeVar

from anabranch.client.consume.acknowledgements.given_back import id_of
from anabranch.client.consume.consumers.consumer import ReceivingConsumer
from anabranch.client.consume.consumers.stream_parts import StreamParts
from anabranch.client.consume.consumers.subscribed_consumer import SubscribedConsumer
from anabranch.client.message import Message, entry_of, number_of
from anabranch.client.options import Seconds
from anabranch.errors import AlreadyClosedError
from anabranch.model.ids import MessageId

T = TypeVar("T")


class AsyncStreamConsumer(ReceivingConsumer[T], SubscribedConsumer[T]):
    """Reads a share of a topic in key order; made by `AsyncClient.subscribe_stream`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            await (await client.create_producer("orders")).send(b"one tea", key="alice")
            consumer = await client.subscribe_stream("orders", "billing", initial_position="earliest")
            async for message in consumer:
                await consumer.acknowledge_cumulative(message)
                break
    """

    def __init__(self, parts: StreamParts[T]) -> None:
        super().__init__(parts)
        self.parts: StreamParts[T] = parts
        self.subscription = parts.subscription
        self._acks = parts.acks

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments this consumer reads now."""
        return self.parts.segments.share.assignment

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of assigned segments that this consumer cannot read yet: other consumers hold them."""
        return self.parts.segments.share.awaited

    async def acknowledge_cumulative(self, message: Message[T] | MessageId) -> None:
        """Acknowledge everything handed out up to a message, in every segment.

        Returns when the acknowledgement is noted; with `ack_receipts` when the broker has made it durable, or
        raises OperationTimeoutError after the operation timeout.
        """
        # Called for each message: a number is noted, and the segments learn of it once for a group.
        context, acks = self._context, self._acks
        if context.closed:
            raise AlreadyClosedError("the consumer is closed")
        if type(message) is Message and entry_of(message).source.owner is context:
            number = number_of(message)
            if number > acks.acked:
                acks.acked = number
        else:
            acks.acknowledge_id(id_of(message, context.given_topic))
        if context.interceptors is not None:
            context.interceptors.acknowledged(message)
        if not self._inbox.run or acks.alarm.at == math.inf:
            # While messages are left, a group that waits already is due before a new one would be.
            acks.schedule()
        if acks.receipts:
            await acks.flush()

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        Raises OperationTimeoutError after `timeout`, by default the operation timeout; the acknowledgements
        stay noted. Raises ConsumerBusyError when the leader gave a segment to another consumer, which gets
        its messages again, and the same error as `receive` when this consumer has lost its registration.
        """
        await self._acks.flush(timeout)
