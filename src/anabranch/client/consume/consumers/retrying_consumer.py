"""The queue consumer with a retry topic: it sends messages there for later, and reads them from there again.

Both topics have the same subscription. Retries give the order of keys up; `KeyedQueueConsumer` keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from anabranch.arguments import check_text
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.failures.letters import LetterTarget, OpenLetters, origin_of, pass_on
from anabranch.client.consume.inbox.waiters import Waiters
from anabranch.client.consume.segments.attachment import QueueOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.failures import Fate, after_failure
from anabranch.client.decide.consuming.letters import reconsume_times, retry_properties
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, log, parse_topic, retry_ending, seconds, text_pairs
from anabranch.client.received import Received
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    InvalidConfigurationError,
    OperationTimeoutError,
)
from anabranch.protocol.schema_stamps import schema_version_of

T = TypeVar("T")

RETRIES_TAKEN = 100
"""Most messages of the retry topic that are handed out in one turn."""


class RetryingQueueConsumer(AsyncQueueConsumer[T]):
    """Made by `AsyncClient.subscribe_queue` with `retry_topic`."""

    def __init__(
        self, pool: ConnectionPool, schema: Codec[T], options: QueueOptions, open_letters: OpenLetters
    ) -> None:
        super().__init__(pool, schema, options, open_letters)
        self._open_letters = open_letters
        self._retries: RetryTopicConsumer[T] | None = None
        self._retries_next = False
        """Whether the next turn is that of the retry topic."""

    @property
    def retry_topic(self) -> str:
        """The name of the retry topic."""
        given = self._options.retry_topic
        return given if isinstance(given, str) else self._given_topic + retry_ending(self.subscription)

    async def _open(self) -> None:
        async with self._close_on_error() as deadline:
            await self._segments.open(deadline)
            options = replace(
                self._options,
                topic=parse_topic(self.retry_topic),
                retry_topic=False,
                initial_position="earliest",
                name=self.name,
            )
            self._retries = RetryTopicConsumer(self, options, self._open_letters)
            if not await deadline.allow(self._retries._open()):
                raise OperationTimeoutError(f"the retry topic {self.retry_topic} did not open in time")

    # For the application.

    async def reconsume_later(
        self,
        message: Message[T],
        *,
        delay: Seconds | None = None,
        properties: Mapping[str, str] | None = None,
        reason: str = "reconsumed later",
    ) -> None:
        if not isinstance(message, Message):
            raise InvalidConfigurationError(f"reconsume_later needs the message, not {message!r}")
        self._source_of(message._entry)  # Raises for a message of another topic.
        check_text("reason", reason)
        more = text_pairs("properties", properties)
        times = self._redeliveries(message)
        if delay is None:
            delay_s = self._options.redelivery.delay(times, self._pool.rng)
        else:
            delay_s = seconds("delay", delay, zero=True)
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if after_failure(times, self._dead_letter) is Fate.SKIP:
            sending = self._bury(message, reason)
        else:
            sending = self._retry_later(message, delay_s, more)
        limit_s = self._pool.operation_timeout_s
        if not await Deadline(limit_s).allow(sending):
            raise OperationTimeoutError(f"{message!r} was not stored in the retry topic within {limit_s:g} s")

    async def _retry_later(self, message: Message[T], delay_s: float, more: Mapping[str, str]) -> None:
        await self._send_letter(message, delay_s, more)
        await self.acknowledge(message)

    async def _send_letter(self, message: Message[T], delay_s: float, more: Mapping[str, str]) -> None:
        """Return when the retry topic has stored a message, with these properties besides its own."""
        entry = message._entry
        encryption = None if self._dead_letter is None else self._dead_letter.encryption
        target = LetterTarget(self.retry_topic, encryption=encryption)
        producer = await self._letters.sending(target, entry.source, schema_version_of(entry.data))
        origin = origin_of(message, self.subscription)
        properties = retry_properties(origin, {**message.properties, **more}, delay_s)
        await pass_on(producer, message, properties, delay_s)

    # Handing out.

    def _load(self) -> bool:
        """Take turns between the two topics."""
        self._retries_next = not self._retries_next
        if self._retries_next:
            return self._load_retries() or super()._load()
        return super()._load() or self._load_retries()

    def _load_retries(self) -> bool:
        retries = self._retries
        if retries is None or self._failure is not None or self._bad.to_raise is not None:
            return False
        found = retries.take_retries(RETRIES_TAKEN)
        self._asked |= retries.asked_for_more()
        number = self._number
        self._number += len(found)
        renumbered: list[Message[T]] = [
            Message(message._entry, message._index, number + place, message._retries)
            for place, message in enumerate(found, 1)
        ]
        self._run = renumbered[::-1]
        return bool(found)

    def _join(self, waiting: Waiters) -> None:
        super()._join(waiting)
        if self._retries is not None:
            self._retries._join(waiting)

    def retries_lost(self, source: SegmentConsumer) -> None:
        """Forget messages of a segment of the retry topic, which its broker delivers again."""
        self._drop_run(source, everything=True)
        self._withdraw(source)

    def retries_failed(self, error: AnabranchError) -> None:
        """Raise the error of the retry topic in every receive."""
        self._fail(error)

    # Acknowledgements.

    def _source_of(self, entry: Received) -> SegmentConsumer | None:
        if self._retries is not None and self._is_retry(entry):
            return self._retries.reader_of(entry)
        return super()._source_of(entry)

    def _is_retry(self, entry: Received) -> bool:
        return entry.source.home is self._retries

    def _finished(self, message: Message[T]) -> None:
        if self._retries is not None and self._is_retry(message._entry):
            self._retries._finished(message)
        else:
            super()._finished(message)

    def _send_acks(self) -> None:
        super()._send_acks()
        if self._retries is not None:
            self._retries.send_acks()

    async def flush_acks(self, timeout: Seconds | None = None) -> None:
        await super().flush_acks(timeout)
        if self._retries is not None:
            await self._retries.flush_acks(timeout)

    # For the run.

    def _redeliveries(self, message: Message[T]) -> int:
        return message.redelivery_count + reconsume_times(message.properties)

    async def _give_back(self, message: Message[T], delay_s: float) -> bool:
        try:
            await self._send_letter(message, delay_s, {})
        except AnabranchError as error:
            log.warning("%s: %r cannot go to the retry topic: %s", self.topic, message, error)
            return await super()._give_back(message, delay_s)
        self._finished(message)
        return True

    # The end.

    async def _delete(self) -> None:
        await super()._delete()
        if self._retries is not None:
            await self._retries.delete()

    async def _close(self, deadline: Deadline) -> None:
        try:
            if self._retries is not None:
                await self._retries._close_by(deadline)
        finally:
            await super()._close(deadline)


class RetryTopicConsumer(AsyncQueueConsumer[T]):
    """Reads the retry topic for the consumer that hands its messages out."""

    def __init__(
        self, home: RetryingQueueConsumer[T], options: QueueOptions, open_letters: OpenLetters
    ) -> None:
        super().__init__(home._pool, home._schema, options, open_letters)
        self._home = home
        self._dead_letters = home._dead_letters
        self._bad = home._bad
        self._interceptors = home._interceptors
        self._waiting = home._waiting

    def take_retries(self, limit: int) -> list[Message[T]]:
        """The messages at hand, perhaps none."""
        return self._take(limit) if self._has_message() else []

    def asked_for_more(self) -> bool:
        """Whether a command to the broker waits for the event loop; it is the caller's from now on."""
        asked, self._asked = self._asked, False
        return asked

    def reader_of(self, entry: Received) -> SegmentConsumer | None:
        return self._source_of(entry)

    def send_acks(self) -> None:
        self._send_acks()

    async def delete(self) -> None:
        await self._delete()

    async def reconsume_later(self, message: Message[T], **more: Any) -> None:
        """A consumer of several topics asks the consumer that received the message."""
        await self._home.reconsume_later(message, **more)

    def _report_end(self) -> None:
        """The consumer of the application reports its own end."""

    def _withdraw(self, source: SegmentConsumer) -> None:
        self._home.retries_lost(source)

    def _fail(self, error: AnabranchError) -> None:
        super()._fail(error)
        self._home.retries_failed(error)
