"""The segments that one consumer reads: their consumers, their first answers, and leaving them in time.

A `SegmentShare` tells which segments these are. `GroupMembership`, `LayoutFollowing` and `ClassicShare` are
the shares of consumers with a subscription; a checkpoint consumer adds and removes its segments itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer, SegmentEvents
from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.decide.consuming.permits import Permits
from anabranch.client.decide.consuming.seeking import SeekMove
from anabranch.client.net.closing import Deadline, farewell, took_too_long
from anabranch.client.options import Seconds, log, positive
from anabranch.errors import AnabranchError, OperationTimeoutError, TopicNotFoundError

QUEUE_SIZE = 1000
"""Messages buffered for a segment at first if the application sets no size."""


class SegmentShare(Protocol):
    """Which segments of its topic a consumer with a subscription reads."""

    @property
    def topic(self) -> str:
        """The name of the topic that the broker resolved."""

    @property
    def assignment(self) -> tuple[str, ...]:
        """Names of the segments that the consumer reads now."""

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of segments of its share that the consumer cannot read yet: other consumers hold them."""

    async def open(self, deadline: Deadline) -> None:
        """Find the first segments and subscribe to them."""

    async def move(self, move: SeekMove) -> None:
        """Move the subscription."""

    async def delete(self) -> None:
        """Delete the subscription, unless it has other consumers."""

    def stop(self) -> None:
        """Neither take nor hand over segments any more."""

    async def leave(self, deadline: Deadline) -> None:
        """Give the share back."""

    def progressed(self) -> None:
        """The application has acknowledged or given back messages."""

    def reconcile(self) -> None:
        """Read what was assigned meanwhile."""

    def refused(self, error: AnabranchError) -> None:
        """Leave all segments, because the broker refuses this consumer for good."""

    def reached_end(self, source: SegmentConsumer) -> None: ...
    def active_changed(self, source: SegmentConsumer) -> None: ...
    def attached_again(self, source: SegmentConsumer) -> None: ...
    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool | None:
        """As in `SegmentEvents`; None for errors that mean the same for all consumers."""

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None: ...


class ConsumedSegments:
    """The consumers of the segments that one consumer of a topic reads."""

    share: SegmentShare
    """Set when the consumer is made; another one takes over when a classic topic is found or migrated."""
    events: SegmentEvents
    """Gets what the consumers of segments report; set before the first of them is added."""

    def __init__(self, context: ConsumerContext, receiver_queue_size: int | None) -> None:
        self._context = context
        self.sources: dict[int, SegmentConsumer] = {}
        """By segment id."""
        self._grows = receiver_queue_size is None
        given = QUEUE_SIZE if receiver_queue_size is None else receiver_queue_size
        self.queue_size = positive("receiver_queue_size", given)

    def permits(self) -> Permits:
        """Return the permits of a segment that has a buffer of its own."""
        return Permits(self.queue_size, grows=self._grows)

    def consume(
        self, address: SegmentAddress, attachment: Attachment, permits: Permits | None = None
    ) -> SegmentConsumer:
        """Begin to read a segment."""
        source = SegmentConsumer(
            self._context, self.events, address, attachment, self.permits() if permits is None else permits
        )
        self.sources[address.segment_id] = source
        return source

    def remove(self, source: SegmentConsumer) -> bool:
        """Forget the consumer of a segment; False if the segment has another one, or none."""
        if self.sources.get(source.segment_id) is not source:
            return False
        del self.sources[source.segment_id]
        return True

    async def first_answers(
        self, deadline: Deadline, answer: Callable[[SegmentConsumer], Awaitable[None]]
    ) -> None:
        """Wait for the first answer about each segment; raises OperationTimeoutError at the deadline."""
        for source in list(self.sources.values()):
            if not await deadline.allow(answer(source)):
                limit_s = self._context.pool.operation_timeout_s
                raise took_too_long(f"subscribing to {source.topic}", limit_s, source.problem)

    async def acks_confirmed(self) -> None:
        """Return when all acknowledgements that were noted are confirmed; raises the consumer's failure."""
        for source in list(self.sources.values()):
            await source.acks_confirmed()
        if self._context.failure is not None:
            raise self._context.failure

    async def confirm(self, confirmed: Callable[[], Awaitable[None]], timeout: Seconds | None) -> None:
        """Wait for `confirmed`; raises OperationTimeoutError after `timeout`, and the acks stay noted."""
        limit_s = self._context.limit_s(timeout)
        if not await Deadline(limit_s).allow(confirmed()):
            raise OperationTimeoutError(
                f"{self._context.topic}: acknowledgements are not confirmed after {limit_s:g} s; "
                "the consumer sends them again when it is connected again"
            )

    async def leave(self, deadline: Deadline, confirmed: Callable[[], Awaitable[None]]) -> None:
        """Leave all segments when `confirmed` returns, or at the deadline; log acks without confirmation."""
        sources = list(self.sources.values())
        for source in sources:
            source.release()
        why = "the timeout of close is over"
        try:
            if await deadline.allow(confirmed()):
                return
        except AnabranchError as error:
            why = str(error)
        finally:
            await farewell([source.hang_up() for source in sources], deadline)
        log.warning("%s: acknowledgements were not confirmed: %s", self._context.topic, why)

    def leave_at_once(self) -> None:
        """Leave all segments without waiting for acknowledgements."""
        for source in self.sources.values():
            self._context.tasks.start(source.close(), f"leave {source.topic}")

    # Errors that mean the same for all kinds of consumers.

    def is_final(self, error: AnabranchError) -> bool:
        """Return whether an error ends the consumer of a segment; otherwise it subscribes again."""
        if is_refused_role(error):
            return self._context.role.ends(error)
        return isinstance(error, TopicNotFoundError) or not error.retryable

    def topic_gone(self, error: AnabranchError) -> None:
        """Note that the broker did not find the topic, or end if it refuses the role."""
        if isinstance(error, TopicNotFoundError):
            self._context.missing.report(error)
        else:
            self.role_refused(error)

    def role_refused(self, error: AnabranchError) -> None:
        """End when the broker refuses the role for good; other errors are handled elsewhere."""
        if self._context.failure is None and self._context.role.ends(error):
            self._context.fail(error)
            self.leave_at_once()

    def refused(self, error: AnabranchError) -> None:
        """End because the leader refused this consumer for good."""
        self.role_refused(error)
        self._context.fail(error)
