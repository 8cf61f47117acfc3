"""The objects of one connection, together with the parts of the broker that they are attached to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.controller.ports.leader import Membership, TopicLeader
from anabranch.model.names import TopicName


class Attached(NamedTuple):
    """A consumer, and the subscription and log that it reads."""

    segment: ServedLog
    subscription: Subscription
    consumer: ServedConsumer


class Registered(NamedTuple):
    """A registered consumer, and the leader that assigns it segments."""

    controller: TopicLeader
    registration: Membership
    topic: TopicName
    end: Callable[[], None]
    """Forgets the registration and has the client register again."""
    uncount: Callable[[], object]
    """Frees its place among the consumers that quotas count."""

    def lost(self) -> None:
        """Release the registration, because its connection is gone."""
        self.uncount()
        self.controller.connection_lost(self.registration)

    async def leave(self) -> None:
        """Remove the consumer for good. Its connection has already forgotten it."""
        self.uncount()
        try:
            await self.controller.leave(self.registration)
        except BaseException:
            # Without this call the name would stay taken.
            self.lost()
            raise
