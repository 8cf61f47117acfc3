"""The consumer of a topic, as the consumers of its segments see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from anabranch.aio import TaskRegistry
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.schema import Codec
from anabranch.errors import AnabranchError
from anabranch.model.ids import MessageId

if TYPE_CHECKING:
    from anabranch.client.consume.segment_consumer import SegmentConsumer


class TopicConsumer(Protocol):
    """Receives the reports of its segments' consumers."""

    pool: ConnectionPool
    tasks: TaskRegistry
    schema: Codec[Any]
    opened_in: int | None
    """The incarnation of the topic in which the subscription was opened."""

    @property
    def topic(self) -> str: ...
    def ready(self, source: SegmentConsumer) -> None:
        """Called when the first entry arrives in an empty buffer."""
        ...

    def dropped(self, source: SegmentConsumer) -> None:
        """Called before buffered entries are dropped; the broker will deliver them again."""
        ...

    def reached_end(self, source: SegmentConsumer) -> None:
        """Called when the subscription has acknowledged a sealed segment to its end."""
        ...

    def voided(self, source: SegmentConsumer) -> None:
        """Called when messages handed out so far, if not yet confirmed, cannot be acknowledged any more."""
        ...

    def attached_again(self, source: SegmentConsumer) -> None:
        """Called when the consumer has subscribed again; a seek may have moved the subscription."""
        ...

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        """Whether an error ends the segment's consumer; otherwise it subscribes again."""
        ...

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        """Called when the segment's consumer has ended because of an error."""
        ...

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        """The last message of each segment handed out up to a number; empty without cumulative acks."""
        ...
