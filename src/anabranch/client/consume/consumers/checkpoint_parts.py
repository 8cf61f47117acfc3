"""The parts of a checkpoint consumer: positions instead of acknowledgements, and no failure policy.

The broker has no cursor for the consumer. It reads a segment when all the segment's ancestors are read to
their end. The members of a group share segments, and buckets of a segment (`group_member.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from anabranch.aio import is_transient
from anabranch.client.consume.consumers.consumer import figures_of
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.attachment import CheckpointOptions, address_in, reader_attachment
from anabranch.client.consume.segments.group_member import GroupMember, no_member
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.decide.consuming.member_positions import MemberPositions
from anabranch.client.decide.consuming.read_positions import ReadPositions
from anabranch.client.figures import ConsumerFigures
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline, farewell
from anabranch.client.net.connection_pool import RECONNECT, ConnectionPool
from anabranch.client.net.topics.layout_watch import LayoutWatch, TopicLayout
from anabranch.client.options import Seconds, log
from anabranch.client.received import Received
from anabranch.client.schema import Codec
from anabranch.errors import AlreadyClosedError, AnabranchError, DataLossError, TopicNotFoundError
from anabranch.model.assignment import Assignment
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.ids import LATEST, MessageId
from anabranch.model.layout import Segment
from anabranch.protocol.gaps import is_gap

T = TypeVar("T")


class CheckpointParts(Generic[T]):
    """The parts of one checkpoint consumer; gets the events of its segments, and decides about entries."""

    def __init__(self, pool: ConnectionPool, schema: Codec[T], options: CheckpointOptions) -> None:
        self.context = context = ConsumerContext(pool, schema, options, "checkpoint")
        self.segments = ConsumedSegments(context, options.receiver_queue_size)
        self.segments.events = self
        self._sources = self.segments.sources
        bad = BadEntryRecord(options.bad_entries)
        self.inbox: Inbox[T] = Inbox(context, self._sources, bad, options.encryption)
        self.inbox.follow(self, self._load)
        self._options = replace(options, name=context.name)
        self._pins: dict[SegmentConsumer, asyncio.Task[None]] = {}
        """Tasks that replace the start LATEST of a segment by its last message."""
        gone = self.segments.topic_gone
        self._watch = LayoutWatch(pool, options.topic, self._layout_changed, gone=gone)
        self._layout: TopicLayout | None = None
        context.resolved = lambda: str(self._layout.name if self._layout is not None else options.topic)
        self._read = ReadPositions(options.start)
        self._member: GroupMember | None = None
        if options.group is not None:
            self._read = read = MemberPositions(options.start)
            self._member = GroupMember(pool, self._options, read, self._assigned, self.segments.refused)

    # The life of the consumer.

    async def open(self) -> None:
        """Look the topic up and find the position of every segment; closes the consumer if that fails."""
        try:
            await self._open(Deadline(self.context.pool.operation_timeout_s))
            self.context.role.opened = True
        except (Exception, asyncio.CancelledError):
            await self.close_by(Deadline(0.0))
            raise

    async def _open(self, deadline: Deadline) -> None:
        tasks = self.context.tasks
        self._layout = layout = await self._watch.open(tasks, deadline.left_s)
        for id_ in self._read.begin(layout.layout):
            self._lose(f"segment {id_} was removed before this checkpoint came to its end")
        if self._member is not None:
            await self._member.registration.open(tasks, deadline.left_s)
        self._open_readable()
        await self.segments.first_answers(deadline, self._opened)
        if self.context.failure is not None:
            raise self.context.failure

    async def _opened(self, source: SegmentConsumer) -> None:
        try:
            await source.first_answer.success()
        except AnabranchError as error:
            # Since the look-up retention may have removed the segment, or another member may have got it.
            if not isinstance(error, TopicNotFoundError) and self._reads(source):
                raise
        if source in self._pins:
            await asyncio.shield(self._pins[source])

    async def close_by(self, deadline: Deadline) -> None:
        """As `close` of the consumer, with the deadline of the caller."""
        try:
            await self.context.closing.run(deadline, self._close)
        finally:
            if self.context.interceptors is not None:
                self.context.interceptors.closed(self.context.topic)

    async def _close(self, deadline: Deadline) -> None:
        """Stop reading; the last checkpoint can still be taken."""
        if self.inbox.entry is not None:
            self.dropped(self.inbox.entry.source)  # type: ignore[arg-type]
            self._keep_position()
        self.inbox.close()
        self._watch.close()
        answers = [source.hang_up() for source in self._sources.values()]
        if self._member is not None:
            self._member.close()
            answers.append(self._member.registration.hang_up())
        try:
            await farewell(answers, deadline)
        finally:
            await self.context.tasks.stop()

    @property
    def figures(self) -> ConsumerFigures:
        """The consumer now, for `AsyncClient.stats`."""
        return figures_of(self.context, self.inbox, self.segments)

    # Checkpoints.

    def checkpoint(self) -> Checkpoint:
        """Return the position after the messages handed out so far."""
        known = None if self._member is None else self._member.known
        return self._read.checkpoint(self.inbox.entry, len(self.inbox.run), known)

    def checkpoint_before(self, waiting: Sequence[Message[Any]]) -> Checkpoint:
        """As `checkpoint`, as if these messages, the last ones handed out, had not been handed out."""
        return self._read.before(self.checkpoint(), waiting)

    async def commit(self, checkpoint: Checkpoint | None, timeout: Seconds | None) -> None:
        """Tell the group that a checkpoint is stored; see `AsyncCheckpointConsumer.commit`."""
        if self.context.closed:
            raise AlreadyClosedError("the consumer is closed")
        if self._member is None:
            raise no_member()
        await self._member.commit(checkpoint or self.checkpoint(), self.context.limit_s(timeout))

    # Layouts and assignments.

    def _assigned(self, assignment: Assignment) -> None:
        if self.context.closed:
            return
        assert self._member is not None
        for id_ in self._member.changed(assignment):
            source = self._sources.pop(id_, None)
            if source is not None:
                source.release()
                self._keep_position()
                self._read.ends.pop(id_, None)
                self._leave(source)
        self._member.take(assignment)
        self._open_readable()
        self._member.report_starts()

    def _layout_changed(self, layout: TopicLayout) -> None:
        self.context.missing.found()
        self._keep_position()
        for id_ in self._read.unread(layout.layout):
            self._removed(id_)
        if self.context.failure is not None:
            return
        self._layout = layout
        self._read.follow(layout.layout)
        for id_ in list(self._sources):
            if id_ not in layout.layout.segments:
                self._leave(self._sources.pop(id_))
            else:
                self._sources[id_].owned_by(layout.owners.get(id_))
        self._open_readable()

    def _leave(self, source: SegmentConsumer) -> None:
        self.context.tasks.start(source.close(), f"leave {source.topic}")

    def _open_readable(self) -> None:
        """Subscribe to segments that may be read now, and ask for the end of sealed ones."""
        layout = self._layout
        if layout is None:
            return
        for segment in self._read.readable(layout.layout):
            source = self._sources.get(segment.id)
            if source is None:
                source = self._attach(layout, segment)
            if not segment.active and segment.id not in self._read.ends:
                self._read.ends[segment.id] = MessageId(segment.id, *LATEST)
                self.context.tasks.start(self._find_end(source), f"end of {source.topic}")

    def _attach(self, layout: TopicLayout, segment: Segment) -> SegmentConsumer:
        # A segment that begins at its end sends nothing until the end is known: otherwise messages before
        # and after the end could not be distinguished.
        at_the_end = self._read.positions[segment.id].position == LATEST
        start, context = partial(self._start_of, segment.id), self.context
        properties, rng = self._options.properties, context.pool.rng
        attachment = reader_attachment(context.name, rng, properties, start, paused=at_the_end)
        source = self.segments.consume(address_in(layout, segment), attachment)
        if at_the_end:
            pinning, what = self._pin(source), f"pin the end of {source.topic}"
            self._pins[source] = context.tasks.start(pinning, what, awaited=True)
        return source

    def _start_of(self, segment: int) -> MessageId:
        self._keep_position()
        return self._read.positions[segment]

    def _reads(self, source: SegmentConsumer) -> bool:
        """Return whether this consumer still reads the segment, through this source."""
        return self._sources.get(source.segment_id) is source

    # The ends of segments.

    async def _pin(self, source: SegmentConsumer) -> None:
        """Replace the position LATEST by the last message now, so that a checkpoint misses no later one."""
        try:
            last = await last_message(source, self._reads)
        except AlreadyClosedError:
            self._pins.pop(source, None)
            return
        source.floor = last
        self._read.pin(source.segment_id, last)
        self._pins.pop(source, None)
        source.resume()
        if self._member is not None:
            self._member.report_starts()

    async def _find_end(self, source: SegmentConsumer) -> None:
        try:
            self._read.ends[source.segment_id] = await last_message(source, self._reads)
        except AnabranchError as error:
            log.debug("%s: its end was not found: %s", source.topic, error)
            return
        self._finish_if_read(source)

    def _finish_if_read(self, source: SegmentConsumer) -> None:
        """Begin the children of a sealed segment that is handed out to its end."""
        if not self._reads(source) or source.entries or self.inbox.run:
            return
        self._keep_position()
        if self._read.is_read(source.segment_id):
            self._finish(source)

    def _finish(self, source: SegmentConsumer) -> None:
        self._read.finish(source.segment_id)
        del self._sources[source.segment_id]
        if self._member is not None:
            self._member.report_finished()
        self._leave(source)
        if not self.context.closed:
            self._open_readable()

    # Handing out.

    def _load(self, next_entry: Callable[[], bool]) -> bool:
        """Finish segments that are read to their end; `next_entry` makes the next entry the run."""
        if not self.inbox.run:
            self._keep_position()
            for source in [self._sources[id_] for id_ in self._read.ends if id_ in self._sources]:
                self._finish_if_read(source)
        return next_entry()

    def _keep_position(self) -> None:
        """Cover the entry of the run once all its messages are handed out."""
        if self.inbox.entry is not None and not self.inbox.run:
            self._read.advance(self.inbox.entry)
            self.inbox.entry = None

    def wants(self, entry: Received) -> bool:
        """Return whether an entry has messages that this member reads; covers it if not."""
        wanted = self._read.wants(entry)
        if not wanted and self._is_gapless(entry):
            self.pass_over(entry)
        return wanted

    def accept(self, entry: Received) -> bool:
        """Note that an entry is about to be handed out; False keeps it from the application."""
        return self._is_gapless(entry) and self._read.accept(entry)

    def pass_over(self, entry: Received) -> None:
        """Cover an entry that is not handed out, or report the messages that are lost with it."""
        if is_gap(entry.data):
            self._lose(f"messages of segment {entry.source.segment_id} are damaged at {entry.position}")
        if self.context.failure is None:
            self._read.cover(entry)
            self._finish_if_read(entry.source)  # type: ignore[arg-type]

    def _is_gapless(self, entry: Received) -> bool:
        """Report messages that were removed before an entry; False if that ends the consumer."""
        if removed := self._read.missing_before(entry):
            self._lose(f"{removed} messages of segment {entry.source.segment_id} were removed before reading")
        return self.context.failure is None

    def _removed(self, id_: int) -> None:
        # While a consumer without a checkpoint opens, it misses nothing that it could have read.
        if self.context.role.opened or self._options.start.is_regular:
            self._lose(f"segment {id_} was removed before it was read to its end")

    def _lose(self, what: str) -> None:
        """Report that messages which should be read are gone for good."""
        topic = self.context.topic
        if self._options.fail_on_data_loss:
            error = DataLossError(f"{topic}: {what}; fail_on_data_loss=False reads on without them")
            self.context.fail(error)
        else:
            log.warning("%s: %s", topic, what)

    # Events of segments.

    def ready(self, source: SegmentConsumer) -> None:
        self.inbox.ready(source)

    def dropped(self, source: SegmentConsumer) -> None:
        self.inbox.drop(source, everything=source.released)

    def voided(self, source: SegmentConsumer) -> None:
        self.inbox.drop(source, everything=True)

    def reached_end(self, source: SegmentConsumer) -> None:
        """Positions, and not acknowledgements, tell when a segment is read."""

    def active_changed(self, source: SegmentConsumer) -> None:
        """No other consumer reads with the same attachment."""

    def attached_again(self, source: SegmentConsumer) -> None:
        """The attachment begins behind the last message that was read."""

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        return self.segments.is_final(error)

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        if isinstance(error, PermissionError):
            self.segments.role_refused(error)
        elif not isinstance(error, TopicNotFoundError):
            log.warning("%s is not read any further: %s", source.topic, error)
        elif self._reads(source):
            self._removed(source.segment_id)
            if self.context.failure is None:
                self._finish(source)


async def last_message(source: SegmentConsumer, reads: Callable[[SegmentConsumer], bool]) -> MessageId:
    """Ask brokers for the last message of a segment until one answers.

    Raises AlreadyClosedError when the segment is not read any more.
    """
    failures = 0
    while True:
        last: MessageId | None = None
        try:
            last = await source.last_message()
        except AnabranchError as error:
            if not is_transient(error):
                raise
        if not reads(source):
            raise AlreadyClosedError(f"this consumer does not read {source.topic} any more")
        if last is not None:
            return last
        await asyncio.sleep(RECONNECT.delay(failures, source.owner.pool.rng))
        failures += 1
