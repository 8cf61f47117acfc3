"""How a producer takes messages: each gets its sequence id, segment and place in a batch within the call.

What callers see is in `producer`; which segment takes a key, and what becomes of a sealed one, is decided in
`lanes`; sending is done in `segment_producer`. This is where they meet: the home of the segments' producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Generic, TypeVar

from anabranch.aio import TaskRegistry, retry
from anabranch.client.decide.batcher import Extras, OpenBucket, Outgoing
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.layout_watch import LayoutWatch, TopicLayout
from anabranch.client.net.reconnector import RECONNECT
from anabranch.client.options import (
    AccessMode,
    Batching,
    CompressionName,
    text_pairs,
)
from anabranch.client.produce.encoded_rows import EncodedRows, add_encoded
from anabranch.client.produce.futures import BulkFuture, Outcome, SendFuture, follow
from anabranch.client.produce.memory import Memory
from anabranch.client.produce.preparing import Prepared, Preparing
from anabranch.client.produce.routes import Route, SegmentRoutes
from anabranch.client.produce.segment_producer import SegmentProducer
from anabranch.client.produce.stored_ids import ask_what_is_stored
from anabranch.client.schema import Codec
from anabranch.clock import Clock
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    InvalidConfigurationError,
    MemoryBufferFullError,
    MessageTooBigError,
    TopicNotFoundError,
)
from anabranch.model.hashing import stand_in_hash
from anabranch.model.layout import Segment
from anabranch.model.names import TopicName
from anabranch.protocol.batches import Compression
from anabranch.protocol.frames import MESSAGE_BYTES_MAX
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")

METADATA_BYTES_MAX = 4096
"""Room left below the broker's limit for the metadata of an entry."""

_ACCESS_MODES: Mapping[AccessMode, pb.ProducerAccessMode.ValueType] = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait_for_exclusive": pb.WaitForExclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
}
_ALONE = Batching(max_delay=0.0, max_messages=1)


class Publisher(Generic[T]):
    """The inside of a producer."""

    def __init__(
        self,
        pool: ConnectionPool,
        memory: Memory,
        clock: Clock,
        topic: TopicName,
        schema: Codec[T],
        name: str | None,
        access_mode: AccessMode,
        send_timeout: float,
        block_if_full: bool,
        compression: CompressionName | None,
        batching: Batching | bool,
        initial_sequence_id: int | None,
        properties: Mapping[str, str] | None,
        initial_subscription: str | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.pool = pool
        self.memory = memory
        self.clock = clock
        self.tasks = TaskRegistry()
        self.name_was_given = name is not None
        self.name = name or f"anabranch-{pool.rng.getrandbits(64):016x}"
        """Never None; a name of one's own lets deduplication span restarts."""
        self.access_mode = _ACCESS_MODES[access_mode]
        self.attach_timeout_s = (
            float("inf") if access_mode == "wait_for_exclusive" else pool.operation_timeout_s
        )
        self.properties: Mapping[str, str] = text_pairs("properties", properties)
        self.initial_subscription = initial_subscription
        self.compression = Compression[compression.upper()] if compression else Compression.NONE
        self.batched = batching is not False
        self.limits = _ALONE if batching is False else Batching() if batching is True else batching
        self.preparing = Preparing(schema, clock)
        # Bytes need no encoding, and most producers send bytes.
        self._plain = self.preparing.plain
        self._send_timeout_s = send_timeout
        self._block_if_full = block_if_full
        self._sequence = -1 if initial_sequence_id is None else initial_sequence_id
        self._sequence_was_given = initial_sequence_id is not None
        self._known = -1
        """The highest sequence id that was stored under this name before."""
        self._message_bytes_max = MESSAGE_BYTES_MAX - METADATA_BYTES_MAX
        self._unseen: list[Outgoing] = []
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self._watch = LayoutWatch(pool, topic, self._layout_changed, gone=self._topic_gone)
        self._lanes: SegmentRoutes

    async def open(self) -> None:
        """Look the topic up; with a name of the caller's or exclusive access also claim all segments."""
        try:
            layout = await self._watch.open(self.tasks)
        except BaseException:
            self._closed = True
            self._watch.close()
            await self.tasks.stop()
            raise
        self._lanes = SegmentRoutes(
            self,
            layout,
            self._begin,
            eager=self.access_mode != pb.Shared,
            turn=self.pool.rng.randrange(2**16),
        )
        if self.name_was_given or self.access_mode != pb.Shared:
            try:
                await self._claim()
            except BaseException:
                self._closed = True
                await self._end()
                raise

    async def _claim(self) -> None:
        # The first sequence id must lie above everything that was stored under this name before. Segments
        # that are sealed meanwhile have successors, which somebody of this name may have used.
        claimed: set[int] = set()
        while missing := [segment for segment in self._lanes.active if segment.id not in claimed]:
            for segment in [self._lanes.segment(segment) for segment in missing]:
                stored = await asyncio.shield(segment.attached)
                claimed.add(segment.segment.id)
                if stored is not None:
                    self._known = max(self._known, stored)
        if self.name_was_given and not self._sequence_was_given:
            # Successors of sealed segments need not know all that those have stored.
            for sealed in self._lanes.layout.layout.sealed:
                stored = await retry(
                    partial(self._stored_in, sealed),
                    what=f"asking segment {sealed.id} for its last sequence id",
                    within_s=self.pool.operation_timeout_s,
                    backoff=RECONNECT,
                    rng=self.pool.rng,
                )
                self._known = max(self._known, stored)
        if not self._sequence_was_given:
            self._sequence = max(self._sequence, self._known)

    async def _stored_in(self, sealed: Segment) -> int:
        layout = self._lanes.layout
        topic = layout.segment_topic(sealed)
        try:
            connection = await self.pool.connection_for(topic, layout.owners.get(sealed.id))
            reply = await ask_what_is_stored(
                self.pool, connection, topic, self.name, self.pool.operation_timeout_s
            )
        except TopicNotFoundError:
            # It was forgotten since the layout was told, and what it had stored is gone.
            return -1
        return -1 if reply is None else reply.last_sequence_id

    # For the blocking face, which checks and encodes in its caller's thread.

    @property
    def blocks_if_full(self) -> bool:
        return self._block_if_full

    def check_open(self) -> None:
        """Raise when the producer takes no more messages."""
        if self._closed:
            raise AlreadyClosedError("the producer is closed")

    async def enqueue_prepared(self, rows: Sequence[Prepared], outcomes: Sequence[Outcome]) -> None:
        """As `enqueue` for each of several messages that were prepared; `outcomes` are told of them."""
        for (data, key, extras, sequence_id), outcome in zip(rows, outcomes, strict=True):
            if self.memory.full or self._closed:
                await self._admit()
            future = self._add_unusual(data, key, extras, sequence_id)
            follow(future._batch, future._index, outcome)
        # Batches may have been closed; let the loop send them.
        await asyncio.sleep(0)

    async def enqueue_many_prepared(
        self, datas: Sequence[bytes], keys: Sequence[str | bytes | None] | None
    ) -> BulkFuture:
        """As `enqueue_many`, for messages that were prepared."""
        await self._admit()
        self._check_size(max(map(len, datas), default=0))
        bulk = BulkFuture(self.loop)
        rows = zip(datas, repeat(None) if keys is None else keys, strict=False)
        add_run = self._add_numbered_run if self._sequence_was_given else self._add_run
        try:
            while add_run(rows, bulk):
                await asyncio.sleep(0)
                await self._admit()
            return bulk
        finally:
            bulk.arm()

    async def enqueue_encoded(self, rows: EncodedRows) -> BulkFuture:
        """As `enqueue_many`, for messages in columns that encode themselves."""
        await self._admit()
        bulk = BulkFuture(self.loop)
        try:
            add_encoded(rows, self, self._lanes, self._sequence + 1, self._message_bytes_max, bulk)
            self._sequence += rows.row_count
            self._mind_the_time(self.loop.time())
        finally:
            bulk.arm()
        await asyncio.sleep(0)
        return bulk

    # Adding messages.

    async def _admit(self) -> None:
        """Return when there is room; raises when the producer cannot take messages."""
        self._check_loop()
        self.check_open()
        if self.memory.full:
            if not self._block_if_full:
                raise MemoryBufferFullError(
                    f"{self.memory.used} bytes wait to be stored; the client's limit is {self.memory.limit}"
                )
            await self.memory.wait()
            if self._closed:
                raise AlreadyClosedError("the producer was closed")

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidConfigurationError("this producer belongs to another event loop")

    def _begin(self, lane: OpenBucket) -> Outgoing:
        # Asking for the running loop costs a system call, so it is done once per batch.
        self._check_loop()
        batcher = lane.batcher
        first = not batcher.opened
        now = self.loop.time()
        batch = batcher.begin(lane, now)
        if first:
            batcher.owner.opened()
        self._mind_the_time(now)
        return batch

    def _mind_the_time(self, now: float) -> None:
        if self._expiry is None and self._send_timeout_s:
            self._expiry = self.loop.call_at(now + self._send_timeout_s, self._expire)

    def _make_room(self, value: bytes, key: str | bytes | None, lane: OpenBucket) -> Route:
        """Close the batches that a large message does not fit into; returns where it goes now."""
        self._check_size(len(value))
        if lane.batcher.opened:
            lane.batcher.owner.close_batches()
        # Messages without a key may go elsewhere now.
        return self._lanes.route(key)

    def _check_size(self, size: int) -> None:
        if size > self._message_bytes_max:
            raise MessageTooBigError(
                f"the message has {size} bytes; the broker takes up to {self._message_bytes_max}"
            )

    def _add_unusual(
        self,
        value: bytes,
        key: str | bytes | None,
        extras: Extras | None,
        sequence_id: int | None,
        bulk: BulkFuture | None = None,
    ) -> SendFuture:
        raw: int | None = None
        numbered = sequence_id is not None or self._sequence_was_given
        if sequence_id is None:
            sequence_id = self._sequence + 1
        if key is None and numbered:
            # A message that its sender knows by a number must go the same way when it is sent again.
            raw = stand_in_hash(self.name, sequence_id)
        route = partial(self._lanes.route, key) if raw is None else partial(self._lanes.route_by, raw)
        lane, slot, overhead = route()
        size = len(value) + overhead
        if extras is not None and extras.properties:
            size += sum(len(name) + len(text) + 8 for name, text in extras.properties.items())
        if size > lane.batcher.bytes_left:
            self._check_size(len(value))
        # What may be stored already is for the broker to judge, and a delayed message must not delay others:
        # both get an entry of their own.
        judged = sequence_id <= max(self._sequence, self._known)
        lonely = judged or (extras is not None and extras.deliver_at_ms > 0)
        if lane.batcher.opened and (lonely or size > lane.batcher.bytes_left):
            lane.batcher.owner.close_batches()
            lane, slot, overhead = route()
        self._sequence = max(self._sequence, sequence_id)
        if lane.batch is None:
            self._begin(lane)
        batch = lane.batcher.add(lane, (value, key, sequence_id, slot), size, self.loop.time(), extras)
        if judged:
            batch.judged, batch.slot = True, None if raw is None else raw >> 16
        index = len(batch.rows) - 1
        if bulk is not None:
            bulk.join(batch)
        if lonely or lane.batcher.full:
            lane.batcher.owner.close_batches()
        return SendFuture(batch, index, self.loop)

    def _add_numbered_run(self, rows: Iterator[tuple[bytes, str | bytes | None]], bulk: BulkFuture) -> bool:
        """Add messages whose numbers the caller may have used before; whether there may be more."""
        for count, (value, key) in enumerate(rows, 1):
            self._add_unusual(value, key, None, None, bulk)
            if self.memory.full or count >= self.limits.max_messages:
                return True
        return False

    def _add_run(self, rows: Iterator[tuple[bytes, str | bytes | None]], bulk: BulkFuture) -> bool:
        """Add messages until a segment's batches close; whether there may be more."""
        lanes = self._lanes
        routes = lanes.routes
        sequence = first = self._sequence
        full: SegmentProducer | None = None
        rolled = False
        try:
            for value, key in rows:
                lane, slot, overhead = routes.get(key) or lanes.route(key)
                batcher = lane.batcher
                left = batcher.bytes_left - len(value) - overhead
                if left < 0 and batcher.opened:
                    rolled = True
                    lanes.join_open(first, bulk)
                    batcher.owner.close_batches()
                    lane, slot, overhead = lanes.route(key)
                    batcher = lane.batcher
                    left = batcher.bytes_left - len(value) - overhead
                batch = lane.batch
                if batch is None:
                    batch = self._begin(lane)
                sequence += 1
                batch.rows.append((value, key, sequence, slot))
                batcher.bytes_left = left
                batcher.room = room = batcher.room - 1
                if room <= 0 or left <= 0:
                    full = batcher.owner
                    return True
                if rolled:
                    return True
            return False
        finally:
            self._sequence = sequence
            lanes.join_open(first, bulk)
            if full is not None:
                full.close_batches()

    # What segments and the watch report.

    def attached_to(self, connection: BrokerConnection) -> None:
        self._message_bytes_max = connection.machine.max_message_bytes - METADATA_BYTES_MAX

    def batches_closed(self, segment: SegmentProducer) -> None:
        self._lanes.batches_closed(segment)

    def gave_up(self, segment: SegmentProducer) -> None:
        self._lanes.forget(segment)

    def failed(self, batch: Outgoing) -> None:
        self._unseen = [kept for kept in self._unseen if not kept.seen]
        self._unseen.append(batch)

    def segment_settled(self, segment: SegmentProducer) -> None:
        self._lanes.transfer()

    def _layout_changed(self, layout: TopicLayout) -> None:
        self._lanes.layout_changed(layout)

    def _topic_gone(self, error: TopicNotFoundError) -> None:
        for segment in list(self._lanes.segments.values()):
            segment.fail_all(error)

    # Waiting and ending.

    async def _drain(self) -> None:
        bulk = BulkFuture(self.loop)
        self._lanes.join_all(bulk)
        bulk.arm()
        while not bulk.done():
            waiting: asyncio.Future[None] = self.loop.create_future()
            bulk.add_done_callback(lambda _, waiting=waiting: waiting.done() or waiting.set_result(None))
            await waiting

    def _expire(self) -> None:
        self._expiry = None
        oldest = self._lanes.expire(self.loop.time(), self._send_timeout_s)
        if oldest is not None and not self._closed:
            self._expiry = self.loop.call_at(oldest + self._send_timeout_s, self._expire)

    async def _end(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._watch.close()
        closing = [segment.close() for segment in self._lanes.segments.values()]
        self._lanes.segments.clear()
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, AnabranchError):
                raise result
        await self.tasks.stop()
