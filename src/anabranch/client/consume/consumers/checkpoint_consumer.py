"""The checkpoint consumer: all segments in key order, with positions that only the application keeps.

The broker has no cursor for it. The consumer reads a segment when all its ancestors are read to their end.
The members of a group share segments, and buckets of a segment (`group_member.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.attachment import CheckpointOptions, address_in, reader_attachment
from anabranch.client.consume.segments.group_member import GroupMember, no_member
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.consume.segments.segment_ends import last_message
from anabranch.client.decide.consuming.member_positions import MemberPositions
from anabranch.client.decide.consuming.permits import Permits
from anabranch.client.decide.consuming.read_positions import ReadPositions
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline, farewell
from anabranch.client.net.connection_pool import ConnectionPool
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


class AsyncCheckpointConsumer(Inbox[T]):
    """Reads a topic from a checkpoint on; made by `AsyncClient.create_checkpoint_consumer`.

    Example:
        async with AsyncClient("pulsar://127.0.0.1:6650") as client:
            reader = await client.create_checkpoint_consumer("orders", start=Checkpoint.earliest())
    """

    def __init__(self, pool: ConnectionPool, schema: Codec[T], options: CheckpointOptions) -> None:
        name = options.name or f"anabranch-checkpoint-{pool.rng.getrandbits(40):010x}"
        super().__init__(pool, schema, name, options)
        self._options = replace(options, name=name)
        self._pins: dict[SegmentConsumer, asyncio.Task[None]] = {}
        """Tasks that replace the start LATEST of a segment by its last message."""
        self._watch = LayoutWatch(pool, options.topic, self._layout_changed, gone=self._topic_gone)
        self._layout: TopicLayout | None = None
        self._read = ReadPositions(options.start)
        self._member: GroupMember | None = None
        if options.group is not None:
            self._read = read = MemberPositions(options.start)
            self._member = GroupMember(pool, self._options, read, self._assigned, self._refused)

    async def _open(self) -> None:
        """Look the topic up and find the position of every segment."""
        async with self._close_on_error() as deadline:
            self._layout = layout = await self._watch.open(self._tasks, deadline.left_s)
            for id_ in self._read.begin(layout.layout):
                self._lose(f"segment {id_} was removed before this checkpoint came to its end")
            if self._member is not None:
                await self._member.registration.open(self._tasks, deadline.left_s)
            self._open_readable()
            await self._first_answers(deadline, self._opened)
            if self._failure is not None:
                raise self._failure

    async def _opened(self, source: SegmentConsumer) -> None:
        try:
            await source.first_answer.success()
        except AnabranchError as error:
            # Since the look-up retention may have removed the segment, or another member may have got it.
            if not isinstance(error, TopicNotFoundError) and self._reads(source):
                raise
        if source in self._pins:
            await asyncio.shield(self._pins[source])

    # For the application.

    @property
    def topic(self) -> str:
        return str(self._layout.name if self._layout is not None else self._options.topic)

    def checkpoint(self) -> Checkpoint:
        """The position after the messages handed out so far; reading from it goes on with the next message.

        In a group it has the segments that this member has read or need not read; see `Checkpoint.merge`.
        """
        known = None if self._member is None else self._member.known
        return self._read.checkpoint(self._entry, len(self._run), known)

    def _checkpoint_before(self, waiting: Sequence[Message[T]]) -> Checkpoint:
        """As `checkpoint`, as if these messages, the last ones handed out, had not been handed out."""
        return self._read.before(self.checkpoint(), waiting)

    async def commit(self, checkpoint: Checkpoint | None = None, timeout: Seconds | None = None) -> None:
        """Tell the group that this checkpoint, or the current one, is stored by the application.

        A member that gets a bucket of this one goes on at the last committed position. From the first commit
        on, members share segments by buckets. Raises ConsumerBusyError, and commits nothing, if another
        member got a bucket meanwhile: it receives what this one received since its last commit.
        """
        if self._closed:
            raise AlreadyClosedError("the consumer is closed")
        if self._member is None:
            raise no_member()
        await self._member.commit(checkpoint or self.checkpoint(), self._limit_s(timeout))

    async def _close(self, deadline: Deadline) -> None:
        """Stop reading; the last checkpoint can still be taken."""
        if self._entry is not None:
            self._dropped(self._entry.source)  # type: ignore[arg-type]
            self._keep_position()
        self._end_waiting()
        self._watch.close()
        answers = [source.hang_up() for source in self._sources.values()]
        if self._member is not None:
            self._member.close()
            answers.append(self._member.registration.hang_up())
        try:
            await farewell(answers, deadline)
        finally:
            await self._tasks.stop()

    # Layouts and assignments.

    def _assigned(self, assignment: Assignment) -> None:
        if self._closed:
            return
        assert self._member is not None
        for id_ in self._member.changed(assignment):
            source = self._sources.pop(id_, None)
            if source is not None:
                source.release()
                self._keep_position()
                self._read.ends.pop(id_, None)
                self._tasks.start(source.close(), f"leave {source.topic}")
        self._member.take(assignment)
        self._open_readable()
        self._member.report_starts()

    def _layout_changed(self, layout: TopicLayout) -> None:
        self._missing.found()
        self._keep_position()
        for id_ in self._read.unread(layout.layout):
            self._removed(id_)
        if self._failure is not None:
            return
        self._layout = layout
        self._read.follow(layout.layout)
        for id_ in list(self._sources):
            if id_ not in layout.layout.segments:
                self._tasks.start(self._sources.pop(id_).close(), f"leave segment {id_}")
            else:
                self._sources[id_].owned_by(layout.owners.get(id_))
        self._open_readable()

    def _open_readable(self) -> None:
        """Subscribe to segments that may be read now, and ask for the end of sealed ones."""
        layout = self._layout
        if layout is None:
            return
        for segment in self._read.readable(layout.layout):
            source = self._sources.get(segment.id)
            if source is None:
                source = self._sources[segment.id] = self._attach(layout, segment)
            if not segment.active and segment.id not in self._read.ends:
                self._read.ends[segment.id] = MessageId(segment.id, *LATEST)
                self._tasks.start(self._find_end(source), f"end of {source.topic}")

    def _attach(self, layout: TopicLayout, segment: Segment) -> SegmentConsumer:
        # A segment that begins at its end sends nothing until the end is known: otherwise messages before
        # and after the end could not be distinguished.
        at_the_end = self._read.positions[segment.id].position == LATEST
        start, properties = partial(self._start_of, segment.id), self._options.properties
        attachment = reader_attachment(self.name, self._pool.rng, properties, start, paused=at_the_end)
        permits = Permits(self._queue_size, grows=self._grows)
        source = SegmentConsumer(self, address_in(layout, segment), attachment, permits)
        if at_the_end:
            self._pins[source] = self._tasks.start(
                self._pin(source), f"pin the end of {source.topic}", awaited=True
            )
        return source

    def _start_of(self, segment: int) -> MessageId:
        self._keep_position()
        return self._read.positions[segment]

    def _reads(self, source: SegmentConsumer) -> bool:
        """Whether this consumer still reads the segment, through this source."""
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
        if not self._reads(source) or source.entries or self._run:
            return
        self._keep_position()
        if self._read.is_read(source.segment_id):
            self._finish(source)

    def _finish(self, source: SegmentConsumer) -> None:
        self._read.finish(source.segment_id)
        del self._sources[source.segment_id]
        if self._member is not None:
            self._member.report_finished()
        self._tasks.start(source.close(), f"leave {source.topic}")
        if not self._closed:
            self._open_readable()

    # Handing out.

    def _load(self) -> bool:
        if not self._run:
            self._keep_position()
            for source in [self._sources[id_] for id_ in self._read.ends if id_ in self._sources]:
                self._finish_if_read(source)
        return super()._load()

    def _keep_position(self) -> None:
        """Cover the entry at hand once all its messages are handed out."""
        if self._entry is not None and not self._run:
            self._read.advance(self._entry)
            self._entry = None

    def _pass_over(self, entry: Received) -> None:
        if is_gap(entry.data):
            self._lose(f"messages of segment {entry.source.segment_id} are damaged at {entry.position}")
        if self._failure is None:
            self._read.cover(entry)
            self._finish_if_read(entry.source)  # type: ignore[arg-type]

    def _wants(self, entry: Received) -> bool:
        wanted = self._read.wants(entry)
        if not wanted and self._is_gapless(entry):
            self._pass_over(entry)
        return wanted

    def _accept(self, entry: Received) -> bool:
        return self._is_gapless(entry) and self._read.accept(entry)

    def _is_gapless(self, entry: Received) -> bool:
        """Report messages that were removed before an entry; False if that ends the consumer."""
        if removed := self._read.missing_before(entry):
            self._lose(f"{removed} messages of segment {entry.source.segment_id} were removed before reading")
        return self._failure is None

    def _removed(self, id_: int) -> None:
        # While a consumer without a checkpoint opens, it misses nothing that it could have read.
        if self._role.opened or self._options.start.is_regular:
            self._lose(f"segment {id_} was removed before it was read to its end")

    def _lose(self, what: str) -> None:
        """Report that messages which should be read are gone for good."""
        if self._options.fail_on_data_loss:
            self._fail(DataLossError(f"{self.topic}: {what}; fail_on_data_loss=False reads on without them"))
        else:
            log.warning("%s: %s", self.topic, what)

    # Called by the consumers of segments.

    def _gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        if isinstance(error, PermissionError):
            self._role_refused(error)
        elif not isinstance(error, TopicNotFoundError):
            log.warning("%s is not read any further: %s", source.topic, error)
        elif self._reads(source):
            self._removed(source.segment_id)
            if self._failure is None:
                self._finish(source)
