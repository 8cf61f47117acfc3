"""The state that an unloaded log keeps in memory: counters, rosters of its leader, and rates."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.broker.serving.delivery.counters import Counters
from anabranch.broker.serving.rates.throttles import SubscriptionGates, TopicThrottle
from anabranch.broker.serving.reading.strategies import Kind
from anabranch.controller.decide.admission import Roster
from anabranch.protocol.pb import pulsar_pb2 as pb


class KeptSubscription(NamedTuple):
    """The state of one subscription of an unloaded log."""

    counters: Counters
    read_errors: int = 0
    last_acked_ms: int = 0
    kind: Kind = pb.CommandSubscribe.Exclusive
    roster: Roster | None = None
    admitting: Roster | None = None
    gates: SubscriptionGates | None = None


class KeptLog(NamedTuple):
    """The state of one unloaded log."""

    store: int
    first_ordinal: int
    """End of the log when this broker began to serve it."""
    messages_in: int
    bytes_in: int
    messages_out: int
    """Delivered by subscriptions that are gone."""
    bytes_out: int
    subscriptions: tuple[tuple[str, KeptSubscription], ...]
    throttle: TopicThrottle | None = None
    """None without limits of rates; a rate that was exceeded stays so."""

    def totals(self) -> tuple[int, int, int, int]:
        """Return the messages and bytes in, the messages and bytes out, since this broker serves the log."""
        counters = [kept.counters for _, kept in self.subscriptions]
        return (
            self.messages_in,
            self.bytes_in,
            self.messages_out + sum(counter.messages_out for counter in counters),
            self.bytes_out + sum(counter.bytes_out for counter in counters),
        )
