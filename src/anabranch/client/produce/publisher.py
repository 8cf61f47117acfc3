"""How a producer takes messages: each gets its sequence id, segment and place in a batch within the call.

The methods for callers are in `producer`; `routes` decides which segment takes a key; `sending` sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar, cast

from anabranch.aio import TaskRegistry
from anabranch.client.decide.credits import CreditWaits
from anabranch.client.decide.held_epochs import HeldEpochs
from anabranch.client.decide.outgoing import Extras, Outgoing
from anabranch.client.interceptors import InterceptorChain
from anabranch.client.net.closing import Closing, Deadline, farewell
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.layout_watch import LayoutWatch, TopicLayout
from anabranch.client.net.trouble import RoleTrouble
from anabranch.client.options import PublishOptions
from anabranch.client.produce.adding import MessageAdding, PlainRows
from anabranch.client.produce.encrypting import EntryEncryption, opened_encryption
from anabranch.client.produce.failures import FailedBatches
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.intercepting import preparing_for
from anabranch.client.produce.memory import PublishContext, RoomWaits
from anabranch.client.produce.preparing import largest_size
from anabranch.client.produce.registering import ask_sealed_segments, register_everywhere
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    InvalidConfigurationError,
    MemoryBufferFullError,
    ProducerFencedError,
)
from anabranch.model.names import TopicName
from anabranch.protocol.compression import Compression
from anabranch.protocol.frames import MESSAGE_BYTES_MAX
from anabranch.speedups import Counter, Enqueuer

T = TypeVar("T")

METADATA_BYTES_MAX = 4096
"""Room left below the broker's limit for the metadata of an entry."""


class Publisher(MessageAdding, Generic[T]):
    """The inside of a producer."""

    def __init__(
        self, context: PublishContext, topic: TopicName, schema: Codec[T], options: PublishOptions
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool, self._memory, self._clock = context.pool, context.memory, context.clock
        self._options, self._tasks = options, TaskRegistry()
        self.name = options.name or f"anabranch-{self._pool.rng.getrandbits(64):016x}"
        """Never None; a name of the caller's lets deduplication span restarts."""
        self._compression, self._limits = Compression[(options.compression or "none").upper()], options.limits
        self._interceptors = chain = InterceptorChain.of(options.interceptors)
        self._preparing = preparing_for(schema, self._clock, chain, str(topic), self.name)
        self._encryption: EntryEncryption | None = None
        # Bytes need no encoding, and most producers send bytes.
        self._plain = self._preparing.plain
        self._sequence_was_given = options.initial_sequence_id is not None
        self._each_alone = self._sequence_was_given or chain is not None or self._preparing.takes_keys
        self._counter = Counter()
        self._counter.last = -1 if options.initial_sequence_id is None else options.initial_sequence_id
        self._known = -1
        """The highest sequence id that was stored under this name before."""
        self._fenced: ProducerFencedError | None = None
        """The loss of exclusive access to another producer, which is final."""
        self._held_epochs = HeldEpochs()
        self._message_bytes_max = MESSAGE_BYTES_MAX - METADATA_BYTES_MAX
        self._failures = FailedBatches(str(topic))
        self._credit_waits = CreditWaits()
        self._expiry: asyncio.TimerHandle | None = None
        self._room = RoomWaits(self._memory, options.send_timeout_s)
        self._role = RoleTrouble(topic.__str__, self._pool.ends)
        self._closed, self._closing = False, Closing()
        self._routes: SegmentRoutes
        self._enqueuer: Enqueuer | None = None
        """The compiled way into the batches, if there is one and messages need no encoding."""
        self._follow: Callable[[TopicLayout], None] = lambda layout: None
        """Takes each new layout; `open` itself takes those that arrive before there are routes."""
        self._watch = LayoutWatch(
            self._pool, topic, lambda layout: self._follow(layout), gone=self._topic_gone
        )
        self._watch.publishes_readable = options.encryption is None

    async def _open(self) -> None:
        """Look the topic up; with a name of the caller's, or exclusive access, register with all segments."""
        exclusive, deadline = self._options.access_mode != "shared", Deadline(self._pool.operation_timeout_s)
        topic = str(self._watch.topic)
        try:
            self._encryption = await opened_encryption(self._options, topic, self._tasks, deadline.left_s)
            layout = await self._watch.open(self._tasks, deadline.left_s)
            self._check_open()
            await self._preparing.schema.register(self._pool, layout, deadline)
            self._routes = SegmentRoutes(self, self._watch.current or layout, eager=exclusive)
            self._follow = self._routes.layout_changed
            self._quicken()
            if self._options.name is not None or exclusive:
                await self._claim(deadline)
            self._role.opened = True
        except (Exception, asyncio.CancelledError):
            await self._close_by(Deadline(0.0))
            raise

    async def _claim(self, deadline: Deadline) -> None:
        # Another producer may keep its exclusive access for as long as it likes.
        waits = self._options.access_mode == "wait_for_exclusive"
        self._known = await register_everywhere(self._routes, None if waits else deadline)
        if not self._sequence_was_given:
            if self._options.name is not None:
                sealed = await ask_sealed_segments(self._routes, None if waits else deadline.left_s)
                self._known = max(self._known, sealed)
            self._counter.last = self._known

    # For the blocking client, which checks and encodes messages in its caller's thread.

    def _check_open(self) -> None:
        """Raise when the producer takes no more messages."""
        if self._closed:
            raise AlreadyClosedError("the producer is closed")

    async def _enqueue_many_prepared(
        self,
        datas: Sequence[bytes],
        keys: Sequence[str | bytes | None] | None,
        extras: Sequence[Extras] | None = None,
    ) -> BulkFuture:
        """As `enqueue_many`, for prepared messages."""
        await self._admit()
        self._check_size(largest_size(datas))
        bulk = BulkFuture(self._loop)
        if self._each_alone:
            numbered = zip(datas, keys or repeat(None), extras or repeat(None), strict=False)
            add_run = partial(self._add_numbered_run, numbered, bulk)
        else:
            add_run = partial(self._add_run, PlainRows.of(datas, keys), bulk)
        try:
            # After a failure the rest would only fail too, one send timeout after the other.
            while not bulk.has_failed and add_run():
                await asyncio.sleep(0)
                await self._admit()
            return bulk
        finally:
            bulk.arm()

    # Adding messages.

    async def _admit(self) -> None:
        """Return when there is room; raises when the producer cannot take messages."""
        self._check_loop()
        self._check_open()
        if self._memory.full:
            if not self._options.block_if_full:
                raise MemoryBufferFullError(
                    f"{self._memory.used} bytes wait to be stored; the client's limit is {self._memory.limit}"
                )
            await self._room.wait()

    # Reports of the segments' producers and of the layout watch.

    def _check_loop(self) -> None:
        """Raise when the caller runs on another event loop than the producer."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidConfigurationError("this producer belongs to another event loop")

    def _batch_opened(self, now: float) -> None:
        """Start the timer of the send timeout, unless it runs."""
        if self._expiry is None and self._options.send_timeout_s:
            self._expiry = self._loop.call_at(now + self._options.send_timeout_s, self._expire)

    def _segment_attached(self, connection: BrokerConnection) -> None:
        self._role.accepted()
        self._message_bytes_max = connection.machine.max_message_bytes - METADATA_BYTES_MAX

    def _entry_failed(self, batch: Outgoing) -> None:
        self._failures.add(batch)

    def _topic_gone(self, error: AnabranchError) -> None:
        refused = self._role.ends(error)
        for segment in list(self._routes.segments.values()):
            # A segment that is attached has accepted the role.
            if not refused or not segment.is_attached:
                segment.fail_all(error)

    # Waiting and ending.

    async def _drain(self) -> None:
        bulk = BulkFuture(self._loop)
        self._routes.join_all(bulk)
        bulk.arm()
        if not bulk.done():
            # Unlike `await bulk`, this leaves errors for the caller to see.
            await asyncio.wait(cast(Any, [bulk]))

    def _expire(self) -> None:
        self._expiry = None
        timeout_s = self._options.send_timeout_s
        oldest = self._routes.expire(self._loop.time(), timeout_s)
        if oldest is not None:
            self._expiry = self._loop.call_at(oldest + timeout_s, self._expire)

    async def _close_by(self, deadline: Deadline) -> None:
        """Complete accepted messages until the deadline, then end; messages without an outcome fail."""
        await self._closing.run(deadline, self._close)

    async def _close(self, deadline: Deadline) -> None:
        self._closed = True
        if self._enqueuer is not None:
            self._enqueuer.closed = True
        self._room.close()
        opened = hasattr(self, "_routes")
        try:
            if opened:
                await deadline.allow(self._drain())
        finally:
            self._watch.close()
            try:
                await farewell(self._end_segments() if opened else (), deadline)
            finally:
                await self._tasks.stop()
                # Callers that await a failed message see its error in this turn of the loop.
                await asyncio.sleep(0)
                self._failures.report()
                if self._interceptors is not None:
                    self._interceptors.closed(str(self._watch.topic))

    def _end_segments(self) -> list[asyncio.Future[Any] | None]:
        """Give all registrations back; messages without an outcome fail."""
        answers = [segment.hang_up() for segment in self._routes.segments.values()]
        self._routes.segments.clear()
        if self._expiry is not None:
            self._expiry.cancel()
        return answers
