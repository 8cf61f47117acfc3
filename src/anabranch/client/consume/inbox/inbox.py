"""The half of a consumer that receives: entries of several segments in, messages out, one or many at a time.

Segments with entries take turns, an entry each. The entry whose turn it is becomes the *run*: its messages
are made at once and numbered in the order they leave. A cancelled `receive` has taken no message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Generic, Self, TypeVar

from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.consume.inbox.decrypting import EntryDecryption
from anabranch.client.consume.inbox.pausing import PausableConsumer
from anabranch.client.consume.inbox.writer_schemas import WriterSchemas
from anabranch.client.consume.segments.attachment import CheckpointOptions, SubscriptionOptions
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.message import Message, messages_of
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, optional_seconds, positive
from anabranch.client.received import Received
from anabranch.client.schema import Codec, checked_codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    InvalidConfigurationError,
    ReceiveTimeoutError,
    TopicNotFoundError,
)
from anabranch.model.acks import bits_at
from anabranch.model.ids import MessageId

T = TypeVar("T")

QUEUE_SIZE = 1000
"""Messages buffered for a segment at first if the application sets no size."""


class Inbox(PausableConsumer, Generic[T]):
    """Receives for a consumer of a topic."""

    def __init__(
        self,
        pool: ConnectionPool,
        schema: Codec[T],
        name: str,
        options: SubscriptionOptions | CheckpointOptions,
    ) -> None:
        super().__init__(pool, options.interceptors)
        self._loop = asyncio.get_running_loop()
        self._schema, self._given_topic = checked_codec(schema), str(options.topic)
        self._writers = WriterSchemas.needed_by(self)
        self._bad = BadEntryRecord(options.bad_entries)
        self._decryption = EntryDecryption.needed_by(self, options.encryption, self._bad)
        self.name = name
        """The consumer's identity: registering under it within the grace time brings the same share."""
        size = options.receiver_queue_size
        self._grows = size is None
        self._queue_size = positive("receiver_queue_size", QUEUE_SIZE if size is None else size)
        self._line: deque[SegmentConsumer] = deque()
        """Segments that have entries, in the order of their turns."""
        self._run: list[Message[T]] = []
        """The messages of the run that are not handed out, last message first."""
        self._entry: Received | None = None
        self._number = 0
        """The entry of the run, and the number of its last message."""
        self._asked = False
        """Whether a command asked the broker for more; it leaves only when the event loop runs."""
        self._opened_in: int | None = None
        """The incarnation of the topic, in which the broker does not create a deleted subscription again."""

    async def receive(self, timeout: Seconds | None = None) -> Message[T]:
        """The next message; raises ReceiveTimeoutError when none came in time.

        Without a `timeout` the call waits for a message for ever. It raises AlreadyClosedError when the
        consumer is closed meanwhile, and TopicNotFoundError while the topic is deleted. A cancelled call has
        taken no message.
        """
        if not self._run or self._stopped:
            await self._next(timeout)
        return self._run.pop()

    async def receive_many(self, max_messages: int, timeout: Seconds | None = None) -> list[Message[T]]:
        """Wait for a message and return all at hand, up to `max_messages`; empty after the timeout."""
        positive("max_messages", max_messages)
        try:
            await self._next(timeout)
        except ReceiveTimeoutError:
            return []
        return self._take(max_messages)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        if not self._run or self._stopped:
            try:
                await self._next(None)
            except AlreadyClosedError:
                raise StopAsyncIteration from None
        return self._run.pop()

    @property
    def bad_entry_count(self) -> int:
        """Entries so far that could not be decoded; `bad_entries` says what became of them."""
        return self._bad.count

    async def _next(self, timeout: Seconds | None) -> None:
        """Return when the run has a message."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidConfigurationError("this consumer belongs to another event loop")
        limit = optional_seconds("timeout", timeout)
        if self._asked:
            self._asked = False
            await asyncio.sleep(0)
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if self._has_message():
            return
        try:
            async with asyncio.timeout(limit):
                while not self._has_message():
                    self._bad.raise_once()
                    self._raise_trouble()
                    await self._waiting.wait()
                    if self._closed:
                        raise AlreadyClosedError("the consumer was closed")
        except TimeoutError:
            raise ReceiveTimeoutError(f"no message came within {limit:g} s") from None
        if self._waiting:
            # The run may have a message for another waiting caller.
            self._waiting.wake()

    def _poll(self, limit: int) -> list[Message[T]]:
        """The messages at hand, perhaps none; raises the errors of `receive`."""
        if self._has_message():
            return self._take(limit)
        self._bad.raise_once()
        self._raise_trouble()
        return []

    def _has_message(self) -> bool:
        """Whether the run has a message that may be handed out."""
        return not self._stopped and (bool(self._run) or self._load())

    def _load(self) -> bool:
        """Make the next entry the run; False when there is none."""
        while self._line and self._failure is None and self._bad.to_raise is None:
            source = self._line.popleft()
            if not source.entries or self._must_wait(source):
                continue
            entry, asked = source.take()
            self._asked |= asked
            if source.entries:
                self._line.append(source)
            if not self._wants(entry):
                continue
            if (problem := entry.problem()) is not None:
                self._bad.add(entry, problem, self.topic, self._number)
                self._pass_over(entry)
                if self._bad.to_raise is not None:
                    # Another waiting receive goes on behind the entry.
                    self._waiting.wake()
            elif self._accept(entry):
                self._start_run(entry)
                if self._run:
                    return True
        return False

    def _must_wait(self, source: SegmentConsumer) -> bool:
        """Whether a key or schema is missing for the next entry of a segment."""
        if self._decryption is not None and self._decryption.waits(source):
            return True
        return self._writers is not None and self._writers.waits(source)

    def _wants(self, entry: Received) -> bool:
        """Whether an entry is decoded at all; False after covering one that other members read."""
        return True

    def _pass_over(self, entry: Received) -> None:
        """Cover an entry that is not handed out; unless the policy is to fail, see to its acknowledgement."""

    def _start_run(self, entry: Received) -> None:
        entry.first_number = self._number + 1
        indexes, self._entry = entry.wanted_indexes(), entry
        self._number += len(indexes)
        self._run = messages_of(entry, indexes, self._number)
        if self._interceptors is not None:
            self._interceptors.received(reversed(self._run))

    def _take(self, limit: int) -> list[Message[T]]:
        taken: list[Message[T]] = []
        while True:
            run = self._run
            room = limit - len(taken)
            if len(run) > room:
                taken += run[: -room - 1 : -1]
                del run[-room:]
                return taken
            run.reverse()
            taken += run
            self._run = []
            if len(taken) == limit or not self._load():
                return taken

    def _accept(self, entry: Received) -> bool:
        """Note that an entry is about to be handed out; False keeps it from the application."""
        return True

    def _ready(self, source: SegmentConsumer) -> None:
        """Called when the first entry arrives in an empty buffer."""
        self._line.append(source)
        self._waiting.wake()

    def _dropped(self, source: SegmentConsumer) -> None:
        """Called before buffered entries are dropped; the broker will deliver them again."""
        self._drop_run(source, everything=source.released)

    def _drop_run(self, source: SegmentConsumer, *, everything: bool) -> None:
        """Drop messages of the run that the broker delivers again.

        Messages that were handed out and given back have lower numbers than the others. This client still
        holds them, and drops them only with `everything`.
        """
        run = self._run
        fresh = 0
        while fresh < len(run) and run[fresh]._number == self._number and run[fresh]._entry.source is source:
            self._number -= 1
            fresh += 1
        self._unhold(run[:fresh])
        del run[:fresh]
        if everything:
            self._unhold([message for message in run if message._entry.source is source])
            self._run = [message for message in run if message._entry.source is not source]

    def _unhold(self, messages: Iterable[Message[T]]) -> None:
        """Let the broker deliver messages again that the application does not have."""
        for entry, group in groupby(messages, key=lambda message: message._entry):
            left = bits_at([message._index for message in group])
            entry.source.unhold(entry.position, left)
            entry.wanted &= ~left

    def _hand_out_again(self, messages: Sequence[Message[T]]) -> None:
        """Hand out messages before all others; the application had them, and has not acknowledged them."""
        if messages and not self._closed:
            self._run += reversed(messages)
            self._waiting.wake()

    def _voided(self, source: SegmentConsumer) -> None:
        """Called when messages handed out so far, if not yet confirmed, cannot be acknowledged any more."""
        self._drop_run(source, everything=True)

    def _reached_end(self, source: SegmentConsumer) -> None:
        """Called when the subscription has acknowledged a sealed segment to its end."""

    def _active_changed(self, source: SegmentConsumer) -> None:
        """Called when a Failover subscription gives a segment to this consumer, or takes it away."""

    def _attached_again(self, source: SegmentConsumer) -> None:
        """Called when the consumer has subscribed again; a seek may have moved the subscription."""

    def _is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        """Whether an error ends the segment's consumer; otherwise it subscribes again."""
        if is_refused_role(error):
            return self._role.ends(error)
        return isinstance(error, TopicNotFoundError) or not error.retryable

    def _gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        """Called when the segment's consumer has ended because of an error."""
        raise NotImplementedError

    def _vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        """The last message of each segment handed out up to a number; empty without cumulative acks."""
        return ()

    # The end.

    def _refused(self, error: AnabranchError) -> None:
        """The leader refused this consumer for good."""
        self._role_refused(error)
        self._fail(error)

    def _fail(self, error: AnabranchError) -> None:
        """Hand out the messages of the run, then raise `error` in every receive."""
        if self._failure is None:
            self._failure = error
            self._waiting.wake_all()

    def _end_waiting(self) -> None:
        self._closed = self._stopped = True
        self._run = []
        self._missing.found()
        self._waiting.wake_all()
