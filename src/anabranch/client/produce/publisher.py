"""The life of a producer: it looks its topic up, claims its name, takes messages, and ends.

`producer` has the methods for callers, `intake` numbers messages and adds them to batches, `routes` decides
which segment takes a key and follows layouts, and `sending` sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar, cast

from anabranch.client.decide.producing.outgoing import Extras
from anabranch.client.figures import ProducerFigures, State
from anabranch.client.interceptors import InterceptorChain
from anabranch.client.net.closing import Closing, Deadline, farewell, took_too_long
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics.layout_watch import LayoutWatch, TopicLayout
from anabranch.client.net.trouble import RoleTrouble
from anabranch.client.options import PublishOptions
from anabranch.client.produce.encrypting import opened_encryption
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.intake import MessageIntake, PlainRows, new_intake
from anabranch.client.produce.intercepting import preparing_for
from anabranch.client.produce.memory import PublishContext
from anabranch.client.produce.parts import FailedBatches, ProducerParts
from anabranch.client.produce.preparing import largest_size
from anabranch.client.produce.registering import ask_what_is_stored
from anabranch.client.produce.routes import SegmentRoutes
from anabranch.client.produce.segment_producer import SegmentProducer
from anabranch.client.schema import Codec
from anabranch.errors import AlreadyClosedError, AnabranchError, TopicNotFoundError
from anabranch.model.layout import Segment
from anabranch.model.names import TopicName
from anabranch.protocol.compression import Compression
from anabranch.speedups import Counter

T = TypeVar("T")

NOTHING_STORED = -1

ANSWERS_S = 1.0
"""How long a producer that one segment has refused waits for the answers of the others."""


class Publisher(Generic[T]):
    """State and behaviour shared by the async, the blocking and the bulk producer.

    `routes` and `intake` exist from `open` on. The application gets its producer after that.
    """

    routes: SegmentRoutes
    intake: MessageIntake

    def __init__(
        self, context: PublishContext, topic: TopicName, schema: Codec[T], options: PublishOptions
    ) -> None:
        pool, loop = context.pool, asyncio.get_running_loop()
        # With a name that the caller chose, deduplication spans restarts.
        name = options.name or f"anabranch-{pool.rng.getrandbits(64):016x}"
        self.options, self.closed = options, False
        self._interceptors = chain = InterceptorChain.of(options.interceptors)
        self.preparing = preparing_for(schema, context.clock, chain, str(topic), name)
        self.parts = ProducerParts(
            name=name,
            options=options,
            pool=pool,
            memory=context.memory,
            clock=context.clock,
            schema=self.preparing.schema,
            role=RoleTrouble(topic.__str__, pool.ends),
            failures=FailedBatches(str(topic)),
            compression=Compression[(options.compression or "none").upper()],
            loop=loop,
        )
        self._numbers_given = options.initial_sequence_id is not None
        self._each_alone = self._numbers_given or chain is not None or self.preparing.takes_keys
        self.counter = Counter()
        self.counter.last = -1 if options.initial_sequence_id is None else options.initial_sequence_id
        self._closing = Closing()
        self._follow: Callable[[TopicLayout], None] = lambda layout: None
        """Takes each new layout; `open` itself takes those that arrive before there are routes."""
        self.watch = LayoutWatch(pool, topic, lambda layout: self._follow(layout), gone=self._topic_gone)
        self.watch.publishes_readable = options.encryption is None

    @property
    def topic(self) -> str:
        """The topic as the caller named it."""
        return str(self.watch.topic)

    @property
    def state(self) -> State:
        """Whether the producer is open or closed."""
        return "closed" if self.closed else "open"

    def figures(self) -> ProducerFigures:
        """Return the numbers of `AsyncClient.stats`."""
        segments = list(self.routes.segments.values()) if hasattr(self, "routes") else []
        waiting = sum(len(segment.sender.sent) + len(segment.sender.unsent) for segment in segments)
        waits = self.parts.credit_waits.count
        return ProducerFigures(self.topic, self.parts.name, self.state, self.counter.last, waiting, waits)

    # Opening.

    async def open(self) -> None:
        """Look the topic up; with a name from the caller, or exclusive access, register with all segments."""
        exclusive = self.options.access_mode != "shared"
        parts, deadline = self.parts, Deadline(self.parts.pool.operation_timeout_s)
        try:
            parts.encryption = await opened_encryption(self.options, self.topic, parts.tasks, deadline.left_s)
            layout = await self.watch.open(parts.tasks, deadline.left_s)
            if self.closed:
                raise AlreadyClosedError("the producer is closed")
            await parts.schema.register(parts.pool, layout, deadline)
            self.routes = SegmentRoutes(parts, self.watch.current or layout, eager=exclusive)
            self.intake = new_intake(parts, self.routes, self.counter, self._each_alone)
            self._follow = self.routes.layout_changed
            if self.options.name is not None or exclusive:
                await self._claim(deadline)
            parts.role.opened = True
        except (Exception, asyncio.CancelledError):
            await self.close_by(Deadline(0.0))
            raise

    async def _claim(self, deadline: Deadline) -> None:
        # Another producer may keep its exclusive access for as long as it likes.
        waits = self.options.access_mode == "wait_for_exclusive"
        known = await register_everywhere(self.routes, self.parts.pool, None if waits else deadline)
        if not self._numbers_given:
            if self.options.name is not None:
                sealed = await ask_sealed_segments(
                    self.routes, self.parts, None if waits else deadline.left_s
                )
                known = max(known, sealed)
            self.counter.last = known
        self.intake.known = known

    def _topic_gone(self, error: AnabranchError) -> None:
        refused = self.parts.role.ends(error)
        for segment in list(self.routes.segments.values()):
            # A segment that is attached has accepted the role.
            if not refused or not segment.is_attached:
                segment.fail_all(error)

    # Sending many.

    async def enqueue_many(
        self,
        datas: Sequence[bytes],
        keys: Sequence[str | bytes | None] | None,
        extras: Sequence[Extras] | None = None,
    ) -> BulkFuture:
        """Add many prepared messages, pausing when batches close; return one future for all of them."""
        intake = self.intake
        await intake.admit()
        intake.check_size(largest_size(datas))
        bulk = BulkFuture(self.parts.loop)
        if intake.each_alone:
            messages = zip(datas, keys or repeat(None), extras or repeat(None), strict=False)
            add_run = partial(intake.add_each, messages, bulk)
        else:
            add_run = partial(intake.add_rows, PlainRows.of(datas, keys), bulk)
        try:
            # After a failure the rest would only fail too, one send timeout after the other.
            while not bulk.has_failed and add_run():
                await asyncio.sleep(0)
                await intake.admit()
            return bulk
        finally:
            bulk.arm()

    # Waiting and ending.

    async def drain(self) -> None:
        """Send all batches and wait for the outcome of every message added before."""
        bulk = BulkFuture(self.parts.loop)
        self.routes.join_all(bulk)
        bulk.arm()
        if not bulk.done():
            # Unlike `await bulk`, this leaves errors for the caller to see.
            await asyncio.wait(cast(Any, [bulk]))

    async def close_by(self, deadline: Deadline) -> None:
        """Complete accepted messages until the deadline, then end; messages without an outcome fail."""
        await self._closing.run(deadline, self._close)

    async def _close(self, deadline: Deadline) -> None:
        self.closed = True
        opened = hasattr(self, "intake")
        if opened:
            self.intake.close()
        try:
            if opened:
                await deadline.allow(self.drain())
        finally:
            self.watch.close()
            try:
                await farewell(self.routes.end() if opened else (), deadline)
            finally:
                await self.parts.tasks.stop()
                # Callers that await a failed message see its error in this turn of the loop.
                await asyncio.sleep(0)
                self.parts.failures.report()
                if self._interceptors is not None:
                    self._interceptors.closed(self.topic)


# A producer with a name that its caller chose numbers its messages above every id that was stored under this
# name, so it asks all segments before its first message.


async def register_everywhere(routes: SegmentRoutes, pool: ConnectionPool, deadline: Deadline | None) -> int:
    """Register with all active segments; return the highest sequence id that they know of this producer.

    Raises OperationTimeoutError at the deadline. Without one the call waits for as long as a segment does.
    """
    highest = NOTHING_STORED
    claimed: set[int] = set()
    # A segment that is sealed meanwhile has successors, which an earlier producer of this name may have used.
    while missing := [segment for segment in routes.layout.layout.active if segment.id not in claimed]:
        registering = [routes.segment(segment) for segment in missing]
        try:
            for segment in registering:
                highest = max(highest, await _registered(segment, pool, deadline))
                claimed.add(segment.segment.id)
        except AnabranchError:
            # A broker of Apache Pulsar may carry out a registration after the command that gives it up, and
            # keep the next producer out meanwhile.
            answers = asyncio.wait([segment.attached for segment in registering])
            await (deadline or Deadline(ANSWERS_S)).allow(answers, ANSWERS_S)
            raise
    return highest


async def _registered(segment: SegmentProducer, pool: ConnectionPool, deadline: Deadline | None) -> int:
    """Wait for a registration; return the highest sequence id that the segment knows of this producer."""
    attached = segment.attached
    if deadline is None:
        await asyncio.shield(attached)
    elif not await deadline.allow(asyncio.shield(attached)):
        what, problem = f"registering with {segment.topic}", segment.registration.problem
        raise took_too_long(what, pool.operation_timeout_s, problem)
    stored = attached.result()
    return NOTHING_STORED if stored is None else stored


async def ask_sealed_segments(routes: SegmentRoutes, parts: ProducerParts, within_s: float | None) -> int:
    """Return the highest sequence id of this producer in a sealed segment; successors need not know it."""
    highest = NOTHING_STORED
    deadline = None if within_s is None else Deadline(within_s)
    for sealed in routes.layout.layout.sealed:
        stored = await parts.pool.retry(
            partial(_last_stored, routes.layout, parts, sealed),
            f"asking segment {sealed.id} for its last sequence id",
            within_s=None if deadline is None else deadline.left_s,
        )
        highest = max(highest, stored)
    return highest


async def _last_stored(layout: TopicLayout, parts: ProducerParts, sealed: Segment) -> int:
    topic = layout.segment_topic(sealed)
    try:
        connection = await parts.pool.connection_for(topic, layout.owners.get(sealed.id))
        reply = await ask_what_is_stored(parts, connection, topic)
    except TopicNotFoundError:
        # The segment was deleted after the layout was sent; its messages are gone.
        return NOTHING_STORED
    return NOTHING_STORED if reply is None else reply.last_sequence_id
