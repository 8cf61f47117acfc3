"""The base of all reading strategies, and the parts that a strategy chooses.

A strategy moves the read position. `sharing` names the consumer of an entry; `outstanding` are the entries
that consumers have and did not acknowledge, and `lanes` those that wait behind a stuck key or bucket. A turn
delivers one batch and never waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.outstanding import OutstandingEntries
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.lanes.subscription_lanes import SubscriptionLanes
from anabranch.broker.serving.reading.sharing import Sharing
from anabranch.model.drains import Ranges


class Reading(ABC):
    """A strategy; the subscription passes it each event and calls `turn` when an entry may be deliverable."""

    def __init__(
        self,
        path: ReadPath,
        sharing: Sharing,
        outstanding: OutstandingEntries | None = None,
        lanes: SubscriptionLanes | None = None,
    ) -> None:
        self.path = path
        self.sharing = sharing
        self.outstanding = outstanding
        """None if consumers acknowledge in order, so that the cursor says it all."""
        self.lanes = lanes
        """None if an entry that cannot go out stops the ones behind it, or is dropped."""
        self.consumers: dict[ServedConsumer, None] = {}
        """Consumers in the order of their arrival."""
        self.open: Ranges | None = None
        """The bucket hashes that may be delivered, None for all; takes effect with `consumers_changed`."""
        if lanes is None:
            path.next = path.cursor.acks.mark

    @abstractmethod
    def turn(self) -> bool:
        """Deliver one batch at most; whether another turn could deliver more at once."""

    @abstractmethod
    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        """Deliver these entries of a consumer again; an ordered strategy all of them."""

    def join(self, consumer: ServedConsumer) -> None:
        """Take a new consumer; `consumers_changed` follows."""
        self.sharing.join(consumer)
        self.consumers[consumer] = None
        self.path.counters.consumers_seen += 1

    def left(self, consumer: ServedConsumer) -> None:
        """Forget a consumer that is gone, and take its entries back; `consumers_changed` follows."""
        del self.consumers[consumer]
        self.path.counters.consumer_left(consumer)
        if self.outstanding is not None:
            self.outstanding.give_back(consumer.outstanding, asked=False)
        self.sharing.leave(consumer)

    def consumers_changed(self) -> None:
        """Take note that the subscription changed `consumers`."""
        if self.sharing.changed(self.consumers):
            self.rewind()

    def acknowledged(self, ordinals: Iterable[int]) -> bool:
        """Take note of whole entries acknowledged; whether more may be delivered because of it."""
        return self.outstanding is not None and self.outstanding.acknowledged(ordinals)

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> bool:
        """Acknowledge messages inside an entry, as its cursor does; whether more may be delivered."""
        cursor = self.path.cursor
        before = cursor.acks.remaining(ordinal)
        pending = count if before is None else before.bit_count()
        cursor.acknowledge_part(ordinal, remaining, count)
        if self.outstanding is None:
            return False
        if ordinal in cursor.acks:
            return self.outstanding.acknowledged((ordinal,))
        left = cursor.acks.remaining(ordinal)
        done = 0 if left is None else pending - left.bit_count()
        return self.outstanding.acknowledged_part(ordinal, done)

    def limit(self, of_consumer: int, of_all: int) -> None:
        """Follow other limits of unacknowledged messages: of each consumer, and of all together."""
        self.path.unacked_max = of_all
        for consumer in self.consumers:
            consumer.limit(of_consumer)
        if self.outstanding is not None:
            self.outstanding.limit_changed()

    def rewind(self) -> None:
        """Start again at the first entry that is not acknowledged."""
        self.path.next = self.path.cursor.acks.mark
        self.path.counters.mark_set(self.path.next)
        self.path.source.forget()
        if self.outstanding is not None:
            self.outstanding.clear(self.consumers)
        if self.lanes is not None:
            self.lanes.rewind()

    @property
    def unacked(self) -> int:
        """Delivered messages that count against the limit of the subscription."""
        return 0 if self.outstanding is None else self.outstanding.messages

    @property
    def blocked(self) -> bool:
        """Whether too many messages are unacknowledged over all consumers."""
        return self.outstanding is not None and self.outstanding.blocked

    @property
    def trouble(self) -> str | None:
        """Why the strategy does not read on, in words; None while it does."""
        return None if self.lanes is None else self.lanes.trouble

    @property
    def explained(self) -> Sequence[str]:
        """Deliveries that go another way than usual, in words."""
        return () if self.lanes is None else self.lanes.explained

    @property
    def delayed(self) -> int:
        """Entries that wait for their delivery time, as far as they are known."""
        return 0 if self.lanes is None else self.lanes.delayed

    @property
    def replayed(self) -> int:
        """Entries that were read before and wait for their delivery."""
        returning = 0 if self.outstanding is None else len(self.outstanding.returning)
        return returning if self.lanes is None else returning + self.lanes.replayed

    @property
    def at_end(self) -> bool:
        """Whether every entry of the log is delivered."""
        if self.path.next < self.path.source.end or (self.outstanding and self.outstanding.returning):
            return False
        return self.lanes is None or self.lanes.empty

    @property
    def wake_at_ms(self) -> int | None:
        """Wall time of the next entry that waits for its delivery time."""
        return None if self.lanes is None else self.lanes.wake_at_ms
