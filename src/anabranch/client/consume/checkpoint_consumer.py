"""The checkpoint consumer: all segments in key order, with positions that only the caller keeps.

There is no cursor in the broker. Each segment has an entry in the checkpoint from the beginning: where it
started, then the last message handed out. A child is read when all its ancestors are read to their end; the
end of a sealed segment is asked for once, since it never changes. The members of a group share the segments
and tell the leader of the topic what they have read to the end; it gives children to nobody before. Nobody
keeps positions for them, so a member that gains a segment begins it where its own start says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

from anabranch.aio import is_bare_timeout, is_transient
from anabranch.client.consume.inbox import Inbox
from anabranch.client.consume.segment_consumer import Attachment, SegmentConsumer
from anabranch.client.decide.ordering import (
    after_last,
    covers,
    follow_layout,
    missing,
    readable,
    start_positions,
)
from anabranch.client.decide.permits import Permits
from anabranch.client.message import Message, Received
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.layout_watch import RECONNECT, LayoutWatch, TopicLayout
from anabranch.client.net.registration import Registration
from anabranch.client.options import log, text_pairs
from anabranch.client.schema import Codec
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    DataLossError,
    OperationTimeoutError,
    TopicNotFoundError,
)
from anabranch.model.assignment import Assignment
from anabranch.model.ids import LATEST, Checkpoint, CheckpointKind, MessageId
from anabranch.model.layout import Segment
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")


class AsyncCheckpointConsumer(Inbox[T]):
    """Reads a topic from a checkpoint on; made by `AsyncClient.create_checkpoint_consumer`."""

    def __init__(
        self,
        pool: ConnectionPool,
        topic: TopicName,
        start: Checkpoint,
        schema: Codec[T],
        name: str | None,
        receiver_queue_size: int | None,
        properties: Mapping[str, str] | None,
        group: str | None,
        fail_on_data_loss: bool,
    ) -> None:
        super().__init__(pool, schema, receiver_queue_size)
        self.name = name or f"anabranch-checkpoint-{pool.rng.getrandbits(40):010x}"
        self._given_topic = topic
        self._start = start
        self._fail_on_data_loss = fail_on_data_loss
        self._opening = True
        self._attachment = Attachment(
            f"reader-{pool.rng.getrandbits(40):010x}",
            pb.CommandSubscribe.Exclusive,
            self.name,
            durable=False,
            properties=text_pairs("properties", properties),
        )
        self._positions: dict[int, MessageId] = {}
        """The last message covered in each segment, without the run at hand."""
        self._finished: dict[int, None] = {}
        self._ends: dict[int, MessageId] = {}
        """The last message of sealed segments that are being read."""
        self._sources: dict[int, SegmentConsumer] = {}
        self._pins: dict[SegmentConsumer, asyncio.Task[None]] = {}
        self._watch = LayoutWatch(pool, self.tasks, topic, self._layout_changed)
        self._layout: TopicLayout | None = None
        self._registration: Registration | None = None
        self._mine: frozenset[int] | None = None
        """In a group: the segments this member reads; None when it reads all."""
        self._ever_mine: dict[int, None] = {}
        if group is not None:
            self._mine = frozenset()
            latest = pb.CommandSubscribe.Latest
            self._registration = Registration(
                pool,
                self.tasks,
                topic,
                group,
                self.name,
                latest,
                pb.CHECKPOINT,
                self._assigned,
                self._fail,
                lambda: self._finished,
            )

    async def open(self) -> None:
        """Look the topic up and pin the position of every segment."""
        try:
            self._layout = layout = await self._watch.open()
            self._positions = start_positions(layout.layout, self._start)
            for id_ in missing(self._start, layout.layout):
                self._lost(f"segment {id_} was removed before this checkpoint came to its end")
            self._skip_old(layout)
            if self._registration is not None:
                await self._registration.open()
            self._open_readable()
            async with asyncio.timeout(self.pool.operation_timeout_s):
                for source in list(self._sources.values()):
                    await self._opened(source)
            self._opening = False
            if self._failure is not None:
                raise self._failure
        except BaseException as error:
            await self.close()
            if is_bare_timeout(error):
                raise OperationTimeoutError(f"opening {self.topic} took too long") from error
            raise

    async def _opened(self, source: SegmentConsumer) -> None:
        try:
            await asyncio.shield(source.attached)
        except AnabranchError as error:
            # Gone by retention, or to another member, since the layout was looked up.
            if not isinstance(error, TopicNotFoundError) and self._reads(source):
                raise
        pinning = self._pins.get(source)
        if pinning is not None:
            await asyncio.shield(pinning)

    def _skip_old(self, layout: TopicLayout) -> None:
        """What a start excludes as a whole need not be opened."""
        for segment in layout.layout.sealed:
            position = self._positions[segment.id].position
            too_old = self._start.kind is CheckpointKind.AT_TIME and (
                0 <= segment.sealed_ms < self._start.timestamp_ms
            )
            if position == LATEST or too_old:
                self._positions[segment.id] = after_last(segment.id)
                self._finished[segment.id] = None

    async def _pin(self, source: SegmentConsumer) -> None:
        """Replace "the end" by the message that is last now, so that restoring loses nothing that follows."""
        try:
            last = await self._last_message_id(source)
        except AlreadyClosedError:
            self._pins.pop(source, None)
            return
        source.floor = self._positions[source.segment_id] = last
        self._pins.pop(source, None)
        source.resume()

    def _reads(self, source: SegmentConsumer) -> bool:
        """Whether the segment is still this consumer's, and this is how it reads it."""
        return self._sources.get(source.segment_id) is source

    async def _last_message_id(self, source: SegmentConsumer) -> MessageId:
        failures = 0
        while True:
            last: MessageId | None = None
            try:
                last = await source.last_message_id()
            except AnabranchError as error:
                if not is_transient(error):
                    raise
            if not self._reads(source):
                raise AlreadyClosedError(f"{source.topic} is not read here any more")
            if last is not None:
                return last
            await asyncio.sleep(RECONNECT.delay(failures, self.pool.rng))
            failures += 1

    # What callers see.

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return str(self._layout.name if self._layout is not None else self._given_topic)

    def checkpoint(self) -> Checkpoint:
        """Exactly what was handed out so far; reading from it goes on with the next message.

        In a group it has the segments that this member has read or need not read; see `Checkpoint.merge`.
        """
        positions = dict(self._positions)
        if self._mine is not None:
            known = {**self._ever_mine, **self._finished}
            positions = {id_: place for id_, place in positions.items() if id_ in known}
        entry = self._entry
        if entry is not None and self._run:
            handed_out = entry.wanted.bit_count() - len(self._run)
            if handed_out:
                index = list(entry.wanted_indexes())[handed_out - 1]
                positions[entry.source.segment_id] = _place(entry, index)
        elif entry is not None:
            positions[entry.source.segment_id] = _place(entry, entry.wanted.bit_length() - 1)
        return self._checkpoint_at(positions)

    def _checkpoint_at(self, positions: dict[int, MessageId]) -> Checkpoint:
        if self._start.kind is CheckpointKind.AT_TIME:
            # What lies before the time is passed over while reading, so the time must come along.
            return Checkpoint(positions, CheckpointKind.AT_TIME, self._start.timestamp_ms)
        return Checkpoint(positions)

    def checkpoint_before(self, waiting: Sequence[Message[T]]) -> Checkpoint:
        """As `checkpoint`, as if these messages, the last ones handed out, had not been."""
        positions = dict(self.checkpoint().positions)
        for message in reversed(waiting):
            entry: Received = message._entry
            earlier = [index for index in entry.wanted_indexes() if index < message._index]
            before = _place(entry, earlier[-1]) if earlier else entry.before
            if before is not None and entry.source.segment_id in positions:
                positions[entry.source.segment_id] = before
        return self._checkpoint_at(positions)

    async def close(self) -> None:
        """Stop reading; the last checkpoint can still be taken."""
        if self._closed:
            return
        self._positions = dict(self.checkpoint().positions)
        self._entry = None
        self._end_waiting()
        self._watch.close()
        await asyncio.gather(*(source.close() for source in self._sources.values()))
        if self._registration is not None:
            await self._registration.leave()
        await self.tasks.stop()

    # Order.

    def _assigned(self, assignment: Assignment) -> None:
        """The group's leader says which segments are this member's."""
        if self._closed:
            return
        self._mine = frozenset(segment.segment_id for segment in assignment.segments)
        self._ever_mine.update(dict.fromkeys(sorted(self._mine)))
        for id_, source in list(self._sources.items()):
            if id_ not in self._mine:
                source.release()
                self._keep_position()
                del self._sources[id_]
                self._ends.pop(id_, None)
                self.tasks.start(source.close(), f"leave {source.topic}")
        if self._layout is not None:
            self._open_readable()

    def _layout_changed(self, layout: TopicLayout) -> None:
        self._keep_position()
        segments = layout.layout.segments
        for id_ in self._positions:
            if (
                id_ not in segments
                and id_ not in self._finished
                and (self._mine is None or id_ in self._mine)
            ):
                self._lost(f"segment {id_} was removed before it was read to its end")
        if self._failure is not None:
            return
        self._layout = layout
        self._positions = follow_layout(self._positions, layout.layout)
        self._finished = {id_: None for id_ in self._finished if id_ in segments}
        for id_ in list(self._sources):
            if id_ not in segments:
                self.tasks.start(self._sources.pop(id_).close(), f"leave segment {id_}")
            else:
                self._sources[id_].owned_by(layout.owners.get(id_))
        self._open_readable()

    def _open_readable(self) -> None:
        """Open what may be read now, and find the end of what is sealed."""
        assert self._layout is not None
        layout = self._layout
        mine = self._mine
        others = () if mine is None else tuple(id_ for id_ in layout.layout.segments if id_ not in mine)
        # In a group the leader of the topic waits for what other members read.
        for segment in readable(layout.layout, (*self._finished, *others)):
            source = self._sources.get(segment.id)
            if source is None:
                source = self._sources[segment.id] = self._attach(layout, segment)
            if not segment.active and segment.id not in self._ends:
                self._ends[segment.id] = MessageId(segment.id, *LATEST)
                self.tasks.start(self._find_end(source), f"end of {source.topic}")

    def _attach(self, layout: TopicLayout, segment: Segment) -> SegmentConsumer:
        # Until the end is pinned down, nothing may come: it could not be told from what follows.
        at_the_end = self._positions[segment.id].position == LATEST
        source = SegmentConsumer(
            self,
            segment.id,
            layout.segment_topic(segment),
            self._attachment,
            Permits(self._queue_size, grows=self._grows),
            url=layout.owners.get(segment.id),
            legacy=segment.is_classic,
            start=lambda: self._start_of(segment.id),
            paused=at_the_end,
        )
        if at_the_end:
            self._pins[source] = self.tasks.start(
                self._pin(source), f"pin the end of {source.topic}", awaited=True
            )
        return source

    def _start_of(self, segment: int) -> MessageId:
        self._keep_position()
        return self._positions[segment]

    async def _find_end(self, source: SegmentConsumer) -> None:
        try:
            self._ends[source.segment_id] = await self._last_message_id(source)
        except AnabranchError as error:
            log.debug("%s: its end was not found: %s", source.topic, error)
            return
        self._finish_if_read(source)

    def _finish_if_read(self, source: SegmentConsumer) -> None:
        """When a sealed segment is handed out to its end, its children may begin."""
        id_ = source.segment_id
        if not self._reads(source) or id_ not in self._ends or source.entries or self._run:
            return
        self._keep_position()
        end = self._ends[id_]
        if covers(self._positions[id_], end.ledger, end.entry, end.batch_index):
            self._finish(source)

    def _finish(self, source: SegmentConsumer) -> None:
        self._positions[source.segment_id] = after_last(source.segment_id)
        self._finished[source.segment_id] = None
        del self._sources[source.segment_id]
        self._ends.pop(source.segment_id, None)
        if self._registration is not None:
            self._registration.finished_more()
        self.tasks.start(source.close(), f"leave {source.topic}")
        if not self._closed:
            self._open_readable()

    # What the inbox and segments report.

    def _load(self) -> bool:
        if not self._run:
            self._keep_position()
            for id_ in list(self._ends):
                if id_ in self._sources:
                    self._finish_if_read(self._sources[id_])
        return super()._load()

    def _keep_position(self) -> None:
        """Fold a run that is handed out completely into the positions."""
        entry = self._entry
        if entry is not None and not self._run:
            if entry.source.segment_id in self._positions and entry.wanted:
                self._positions[entry.source.segment_id] = _place(entry, entry.wanted.bit_length() - 1)
            self._entry = None

    def _lost(self, what: str) -> None:
        """Messages that should be read are gone for good."""
        if self._fail_on_data_loss:
            self._fail(
                DataLossError(f"{self.topic}: {what}; with fail_on_data_loss=False reading goes on without")
            )
        else:
            log.warning("%s: %s", self.topic, what)

    def _accept(self, entry: Received) -> bool:
        if not self._follows(entry):
            return False
        if self._start.kind is CheckpointKind.AT_TIME and entry.publish_time_ms < self._start.timestamp_ms:
            self._positions[entry.source.segment_id] = _place(entry, entry.count - 1)
            return False
        entry.before = self._positions.get(entry.source.segment_id)
        return True

    def _follows(self, entry: Received) -> bool:
        """Whether an entry is the next one; else what came before it is gone."""
        id_ = entry.source.segment_id
        expected = self._positions[id_].next_index if id_ in self._positions else -1
        if expected < 0 or entry.index is None:
            return True
        gone = entry.index - entry.count + 1 - expected
        if gone > 0:
            self._lost(f"{gone} messages of segment {id_} were removed before they were read")
        return self._failure is None

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        return isinstance(error, TopicNotFoundError) or not error.retryable

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        if not isinstance(error, TopicNotFoundError):
            log.warning("%s is not read any further: %s", source.topic, error)
        elif self._reads(source):
            # What lies before a start that is no checkpoint may have gone while the topic was opened.
            if not self._opening or self._start.is_regular:
                self._lost(f"segment {source.segment_id} was removed before it was read to its end")
            if self._failure is None:
                # Nothing of it can come before its children any more.
                self._finish(source)


def _place(entry: Received, index: int) -> MessageId:
    ledger, position = entry.position
    return MessageId(
        entry.source.segment_id,
        ledger,
        position,
        index if entry.batch_size else -1,
        entry.batch_size,
        next_index=-1 if entry.index is None else entry.index - entry.count + index + 2,
    )
