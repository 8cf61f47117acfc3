"""The queue consumer: messages in any order, or in the order of keys, acknowledged one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from anabranch.arguments import check_text
from anabranch.client.consume.acknowledgements.given_back import each_of
from anabranch.client.consume.consumers.consumer import ReceivingConsumer
from anabranch.client.consume.consumers.queue_parts import QueueParts
from anabranch.client.consume.consumers.subscribed_consumer import SubscribedConsumer
from anabranch.client.decide.consuming.failures import Fate, after_failure
from anabranch.client.message import Message, entry_of, place_of
from anabranch.client.net.closing import Deadline
from anabranch.client.options import Seconds, seconds, text_pairs
from anabranch.errors import (
    AlreadyClosedError,
    InvalidConfigurationError,
    OperationTimeoutError,
    in_words,
)
from anabranch.model.ids import MessageId

T = TypeVar("T")


class AsyncQueueConsumer(ReceivingConsumer[T], SubscribedConsumer[T]):
    """Reads all segments in parallel; made by `AsyncClient.subscribe_queue`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            await (await client.create_producer("orders")).send(b"one tea", key="alice")
            consumer = await client.subscribe_queue("orders", "work", initial_position="earliest")
            async with consumer.processing(await consumer.receive(timeout=10)) as message:
                print(message.key)
    """

    def __init__(self, parts: QueueParts[T]) -> None:
        super().__init__(parts)
        self.parts: QueueParts[T] = parts
        self.subscription = parts.subscription
        self._acks, self._failures = parts.acks, parts.failures

    async def acknowledge(self, message: Message[T] | MessageId | Iterable[Message[T] | MessageId]) -> None:
        """Acknowledge one message or several; the broker never delivers them again.

        Returns when the acknowledgement is noted; with `ack_receipts` when the broker has made it durable, or
        raises OperationTimeoutError after the operation timeout.
        """
        # Called for each message: its index is noted with its entry, whose bits change once for a group.
        # Asking for the type is quicker than `isinstance`; another type only takes the longer way below.
        acks = self._acks
        if self._context.closed:
            raise AlreadyClosedError("the consumer is closed")
        if acks.notes_only and type(message) is Message:
            entry, index = place_of(message)
            if entry.noted_by is acks:
                entry.noted.append(index)
                acks.count += 1
            else:
                acks.note_indexes(entry, [index])
            if acks.timer is None or acks.count >= acks.group_size:
                acks.schedule()
            return
        acks.acknowledge_each(each_of(message))
        if acks.receipts:
            await acks.flush()

    async def negative_acknowledge(
        self,
        message: Message[T] | MessageId,
        *,
        delay: Seconds | None = None,
        reason: str = "negatively acknowledged",
    ) -> None:
        """Give a message back; it is delivered again after `delay`, by default as `redelivery` says.

        A consumer with `order="key"` keeps the message, and hands it out again before all later messages of
        its key, which wait meanwhile. `reason` is for the dead letter that the message may become.
        """
        wait_s = None if delay is None else seconds("delay", delay, zero=True)
        check_text("reason", reason)
        context = self._context
        if context.closed:
            raise AlreadyClosedError("the consumer is closed")
        source = self._acks.locate(message)[0]
        if source is None:
            return
        if wait_s is None:
            redelivered = message.redelivery_count if isinstance(message, Message) else 0
            wait_s = self.parts.run_retry.delay(redelivered, context.pool.rng)
        self._failures.refuse(message, source, wait_s, reason)
        if context.interceptors is not None:
            context.interceptors.refused(message, reason)

    async def reconsume_later(
        self,
        message: Message[T],
        *,
        delay: Seconds | None = None,
        properties: Mapping[str, str] | None = None,
        reason: str = "reconsumed later",
    ) -> None:
        """Send a message to the retry topic, which delivers it after `delay`, and acknowledge it here.

        By default the delay is that of `redelivery`. After as many retries as `dead_letter` allows the
        message goes to the dead letter topic instead, with the `reason`. Returns when the message is stored
        there; if that fails the call raises, and the message stays unacknowledged. Needs `retry_topic`.
        """
        if self.parts.letters.retry is None:
            raise InvalidConfigurationError("reconsume_later needs a consumer with a retry_topic")
        if not isinstance(message, Message):
            raise InvalidConfigurationError(f"reconsume_later needs the message, not {message!r}")
        self._acks.source_of(entry_of(message))  # Raises for a message of another topic.
        check_text("reason", reason)
        more = text_pairs("properties", properties)
        times, pool = self._failures.redeliveries(message), self._context.pool
        if delay is None:
            delay_s = self.parts.run_retry.delay(times, pool.rng)
        else:
            delay_s = seconds("delay", delay, zero=True)
        if self._context.closed:
            raise AlreadyClosedError("the consumer is closed")
        if after_failure(times, self._failures.dead_letter) is Fate.SKIP:
            sending = self._failures.bury(message, reason)
        else:
            sending = self._retry_later(message, delay_s, more)
        limit_s = pool.operation_timeout_s
        if not await Deadline(limit_s).allow(sending):
            raise OperationTimeoutError(f"{message!r} was not stored in the retry topic within {limit_s:g} s")

    async def _retry_later(self, message: Message[T], delay_s: float, more: Mapping[str, str]) -> None:
        assert self.parts.letters.retry is not None
        await self.parts.letters.retry.send(message, delay_s, more)
        await self.acknowledge(message)

    @asynccontextmanager
    async def processing(self, message: Message[T]) -> AsyncIterator[Message[T]]:
        """Acknowledge the message after the block; if the block raises, give it back and raise."""
        try:
            yield message
        except BaseException as error:
            await self.negative_acknowledge(message, reason=in_words(error))
            raise
        await self.acknowledge(message)

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the broker has confirmed them.

        Raises OperationTimeoutError after `timeout`, by default the operation timeout; the acknowledgements
        stay noted.
        """
        await self._acks.flush(timeout)
