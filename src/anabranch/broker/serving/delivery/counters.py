"""The counters of one subscription: numbers that only grow, and the times of the last events."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.rates.rate_meter import RateMeter


@dataclass(slots=True)
class Counters:
    """Deliveries, acknowledgements and read faults of one subscription; an unloaded log keeps them.

    The acknowledged and redelivered messages of connected consumers are counted by the consumers.
    """

    messages_out: int = 0
    bytes_out: int = 0
    bucket_moves: int = 0
    """How often a bucket went from one consumer to another."""
    messages_dropped: int = 0
    """Only on a live topic: messages for which no consumer had room."""
    damaged_entries: int = 0
    """Damaged entries that were passed without delivery."""
    damaged_messages: int = 0
    """Messages in those entries, as far as their number is known."""
    entries_read: int = 0
    """Entries taken from the log, from memory or disk; more than were delivered if some were read twice."""
    entries_fetched: int = 0
    """Those of them that came from disk."""
    relief_moves: int = 0
    """How often a slot went away from a busy consumer, or back to it."""
    lane_bounds: int = 0
    """How often reading stopped because lanes had reached a bound."""
    consumers_seen: int = 0
    """Consumers that attached, gone ones included."""
    messages_acked: int = 0
    """Messages that consumers acknowledged which are gone."""
    messages_redelivered: int = 0
    """Messages that consumers wanted again which are gone."""
    messages_expired: int = 0
    """Messages that were acknowledged because of their age."""
    sent_ms: int = 0
    """Last delivery to a consumer that is gone."""
    flow_ms: int = 0
    """Last FLOW of any consumer."""
    marked_ms: int = 0
    """When the mark, below which all entries are acknowledged, last moved."""
    expired_ms: int = 0
    """When messages were last looked through for old ones."""
    mark: int = -1
    """The mark at `marked_ms`."""
    index: int = -1
    """The index of the first message there; -1 if it is not known."""
    meter: RateMeter | None = None
    """Made with the first delivery, because most subscriptions of a broker may be idle."""

    def consumer_left(self, consumer: ServedConsumer) -> None:
        """Count on from the numbers of a consumer that is gone."""
        self.messages_acked += consumer.messages_acked
        self.messages_redelivered += consumer.messages_redelivered
        self.sent_ms = max(self.sent_ms, consumer.last_sent_ms)

    def mark_set(self, mark: int) -> None:
        """Take note that the mark moved without an acknowledgement of a consumer."""
        self.mark, self.index = mark, -1
