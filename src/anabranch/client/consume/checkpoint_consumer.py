"""The checkpoint consumer: all segments in key order, with positions that only the application keeps.

The broker has no cursor for it. The consumer reads a segment when all its ancestors are read to their end.
The members of a group share the segments and report finished ones to the leader, which then assigns their
children. No member knows the positions of another, so each begins a segment where its own start says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from anabranch.aio import is_transient
from anabranch.client.consume.attachment import Attachment, CheckpointOptions, address_in
from anabranch.client.consume.inbox import Inbox
from anabranch.client.consume.segment_consumer import SegmentConsumer
from anabranch.client.decide.ordering import ReadPositions, readable
from anabranch.client.decide.permits import Permits
from anabranch.client.message import Message, Received
from anabranch.client.net.closing import Deadline, farewell
from anabranch.client.net.connection_pool import RECONNECT, ConnectionPool
from anabranch.client.net.layout_watch import LayoutWatch, TopicLayout
from anabranch.client.net.registration import Registration, RegistrationOptions
from anabranch.client.options import log
from anabranch.client.schema import Codec
from anabranch.errors import AlreadyClosedError, AnabranchError, DataLossError, TopicNotFoundError
from anabranch.model.assignment import Assignment
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.ids import LATEST, MessageId
from anabranch.model.layout import Segment
from anabranch.protocol.gaps import is_gap
from anabranch.protocol.pb import pulsar_pb2 as pb

T = TypeVar("T")


class AsyncCheckpointConsumer(Inbox[T]):
    """Reads a topic from a checkpoint on; made by `AsyncClient.create_checkpoint_consumer`."""

    def __init__(self, pool: ConnectionPool, schema: Codec[T], options: CheckpointOptions) -> None:
        name = options.name or f"anabranch-checkpoint-{pool.rng.getrandbits(40):010x}"
        super().__init__(pool, schema, name, options.receiver_queue_size, options.bad_entries)
        self._options = options
        self._attachment = Attachment(
            f"reader-{pool.rng.getrandbits(40):010x}",
            pb.CommandSubscribe.Exclusive,
            self.name,
            durable=False,
            properties=options.properties,
        )
        self._read = ReadPositions(options.start)
        self._pins: dict[SegmentConsumer, asyncio.Task[None]] = {}
        """Tasks that replace the start LATEST of a segment by its last message."""
        self._watch = LayoutWatch(pool, options.topic, self._layout_changed, gone=self.role_refused)
        self._layout: TopicLayout | None = None
        self._registration: Registration | None = None
        self._mine: frozenset[int] | None = None
        """In a group: the segments assigned to this member; None outside a group."""
        self._ever_mine: dict[int, None] = {}
        if options.group is not None:
            self._mine = frozenset()
            latest = pb.CommandSubscribe.Latest
            request = RegistrationOptions(
                options.topic, options.group, name, pb.CHECKPOINT, latest, lambda: self._read.finished
            )
            self._registration = Registration(pool, request, self._assigned, self._refused)

    async def open(self) -> None:
        """Look the topic up and find the position of every segment."""
        async with self._close_on_error() as deadline:
            self._layout = layout = await self._watch.open(self.tasks, deadline.left_s)
            for id_ in self._read.begin(layout.layout):
                self._lose(f"segment {id_} was removed before this checkpoint came to its end")
            if self._registration is not None:
                await self._registration.open(self.tasks, deadline.left_s)
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
        known = None if self._mine is None else {**self._ever_mine, **self._read.finished}
        return self._read.checkpoint(self._entry, len(self._run), known)

    def checkpoint_before(self, waiting: Sequence[Message[T]]) -> Checkpoint:
        """As `checkpoint`, as if these messages, the last ones handed out, had not been handed out."""
        return self._read.before(self.checkpoint(), waiting)

    async def _close(self, deadline: Deadline) -> None:
        """Stop reading; the last checkpoint can still be taken."""
        self._read.positions = dict(self.checkpoint().positions)
        self._entry = None
        self._end_waiting()
        self._watch.close()
        answers = [source.hang_up() for source in self.sources.values()]
        if self._registration is not None:
            answers.append(self._registration.hang_up())
        try:
            await farewell(answers, deadline)
        finally:
            await self.tasks.stop()

    # Layouts and assignments.

    def _assigned(self, assignment: Assignment) -> None:
        if self._closed:
            return
        self._mine = frozenset(segment.segment_id for segment in assignment.segments)
        self._ever_mine.update(dict.fromkeys(sorted(self._mine)))
        for id_, source in list(self.sources.items()):
            if id_ not in self._mine:
                source.release()
                self._keep_position()
                del self.sources[id_]
                self._read.ends.pop(id_, None)
                self.tasks.start(source.close(), f"leave {source.topic}")
        if self._layout is not None:
            self._open_readable()

    def _layout_changed(self, layout: TopicLayout) -> None:
        self._keep_position()
        for id_ in self._read.unread(layout.layout):
            if self._mine is None or id_ in self._mine:
                self._lose(f"segment {id_} was removed before it was read to its end")
        if self._failure is not None:
            return
        self._layout = layout
        self._read.follow(layout.layout)
        for id_ in list(self.sources):
            if id_ not in layout.layout.segments:
                self.tasks.start(self.sources.pop(id_).close(), f"leave segment {id_}")
            else:
                self.sources[id_].owned_by(layout.owners.get(id_))
        self._open_readable()

    def _open_readable(self) -> None:
        """Subscribe to segments that may be read now, and ask for the end of sealed ones."""
        layout, mine = self._layout, self._mine
        assert layout is not None
        # In a group the leader waits for the segments that other members read.
        others = () if mine is None else tuple(id_ for id_ in layout.layout.segments if id_ not in mine)
        for segment in readable(layout.layout, (*self._read.finished, *others)):
            source = self.sources.get(segment.id)
            if source is None:
                source = self.sources[segment.id] = self._attach(layout, segment)
            if not segment.active and segment.id not in self._read.ends:
                self._read.ends[segment.id] = MessageId(segment.id, *LATEST)
                self.tasks.start(self._find_end(source), f"end of {source.topic}")

    def _attach(self, layout: TopicLayout, segment: Segment) -> SegmentConsumer:
        # A segment that begins at its end sends nothing until the end is known: otherwise messages before
        # and after the end could not be distinguished.
        at_the_end = self._read.positions[segment.id].position == LATEST
        attachment = replace(self._attachment, start=lambda: self._start_of(segment.id), paused=at_the_end)
        permits = Permits(self._queue_size, grows=self._grows)
        source = SegmentConsumer(self, address_in(layout, segment), attachment, permits)
        if at_the_end:
            self._pins[source] = self.tasks.start(
                self._pin(source), f"pin the end of {source.topic}", awaited=True
            )
        return source

    def _start_of(self, segment: int) -> MessageId:
        self._keep_position()
        return self._read.positions[segment]

    def _reads(self, source: SegmentConsumer) -> bool:
        """Whether this consumer still reads the segment, through this source."""
        return self.sources.get(source.segment_id) is source

    # The ends of segments.

    async def _pin(self, source: SegmentConsumer) -> None:
        """Replace the position LATEST by the last message now, so that a checkpoint misses no later one."""
        try:
            last = await self._last_message(source)
        except AlreadyClosedError:
            self._pins.pop(source, None)
            return
        source.floor = self._read.positions[source.segment_id] = last
        self._pins.pop(source, None)
        source.resume()

    async def _last_message(self, source: SegmentConsumer) -> MessageId:
        """Ask until the broker answers; raises AlreadyClosedError when the segment is not read any more."""
        failures = 0
        while True:
            last: MessageId | None = None
            try:
                last = await source.last_message()
            except AnabranchError as error:
                if not is_transient(error):
                    raise
            if not self._reads(source):
                raise AlreadyClosedError(f"this consumer does not read {source.topic} any more")
            if last is not None:
                return last
            await asyncio.sleep(RECONNECT.delay(failures, self.pool.rng))
            failures += 1

    async def _find_end(self, source: SegmentConsumer) -> None:
        try:
            self._read.ends[source.segment_id] = await self._last_message(source)
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
        del self.sources[source.segment_id]
        if self._registration is not None:
            self._registration.report_finished()
        self.tasks.start(source.close(), f"leave {source.topic}")
        if not self._closed:
            self._open_readable()

    # Handing out.

    def _load(self) -> bool:
        if not self._run:
            self._keep_position()
            for id_ in list(self._read.ends):
                if id_ in self.sources:
                    self._finish_if_read(self.sources[id_])
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

    def _accept(self, entry: Received) -> bool:
        removed = self._read.missing_before(entry)
        if removed:
            self._lose(f"{removed} messages of segment {entry.source.segment_id} were removed before reading")
            if self._failure is not None:
                return False
        return self._read.accept(entry)

    def _lose(self, what: str) -> None:
        """Report that messages which should be read are gone for good."""
        if self._options.fail_on_data_loss:
            self._fail(
                DataLossError(f"{self.topic}: {what}; set fail_on_data_loss=False to read on without them")
            )
        else:
            log.warning("%s: %s", self.topic, what)

    # Called by the consumers of segments.

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        if isinstance(error, PermissionError):
            self.role_refused(error)
        elif not isinstance(error, TopicNotFoundError):
            log.warning("%s is not read any further: %s", source.topic, error)
        elif self._reads(source):
            # Retention may remove segments while a consumer without a checkpoint opens; it misses nothing.
            if self.role.opened or self._options.start.is_regular:
                self._lose(f"segment {source.segment_id} was removed before it was read to its end")
            if self._failure is None:
                self._finish(source)
