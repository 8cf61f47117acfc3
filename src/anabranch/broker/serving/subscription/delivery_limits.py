"""The rates and limits of delivery of one subscription on one log, asked once a turn."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.serving.delivery.consumer import ConsumerOptions
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.broker.serving.rates.throttles import SubscriptionGates, TopicThrottle


class DeliveryLimits:
    """Lets the turns of a subscription wait while a rate is exceeded, and counts what its turns deliver."""

    def __init__(self, throttle: TopicThrottle, subscription: str, path: ReadPath) -> None:
        self._throttle = throttle
        self._subscription = subscription
        self._path = path
        self._entries_max = path.batch_entries
        self._counted = (0, 0)
        self.gates: SubscriptionGates | None = None

    def follow(self, options: ConsumerOptions) -> None:
        """Take the limit of unacknowledged messages that a new consumer brings."""
        if options.unacked_of_all_max is not None:
            self._path.unacked_max = options.unacked_of_all_max

    def must_wait(self, go_on: Callable[[], None]) -> bool:
        """Return whether no entry may be delivered now; `go_on` is called when one may."""
        if self._throttle.limits_delivery:
            # Kept here, because the throttle does not keep the gates of a subscription alive.
            self.gates = self._throttle.subscription(self._subscription)
            if self.gates.must_wait(go_on):
                return True
            self._path.batch_entries = self.gates.entries_max(self._entries_max)
            self._counted = (self._path.counters.messages_out, self._path.counters.bytes_out)
        elif self.gates is not None:
            self.gates = None
            self._path.batch_entries = self._entries_max
        return False

    def forget(self, go_on: Callable[[], None]) -> None:
        """Leave the line, because a consumer left; the next turn joins it again if one is there."""
        if self.gates is not None:
            self.gates.forget(go_on)

    def delivered(self) -> None:
        """Count the messages and bytes of the turn that `must_wait` allowed."""
        if self.gates is not None:
            messages, size = self._counted
            counters = self._path.counters
            self.gates.delivered(counters.messages_out - messages, counters.bytes_out - size)
