"""One consumer of a subscription: its options, its counters, and the news sent to its client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.serving.context import ClientLink
from anabranch.broker.serving.rates.rate_meter import RateMeter
from anabranch.model.ranges import HashRange
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.connection import OUR_CLIENTS
from anabranch.protocol.pb import pulsar_pb2 as pb

REGISTRATION_S = 1.0
"""A client without a FLOW knows its consumer this long after SUCCESS."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a client attaches a consumer."""

    priority: int = 0
    unacked_max: int = 2**62
    unacked_of_all_max: int | None = None
    """Limit for all consumers of the subscription; None to keep the limit that it has."""
    epoch: int | None = None
    """Echoed in each MESSAGE; the client drops messages from before its last full redelivery."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    connected_at_ms: int = 0
    member: str | None = None
    """The registered consumer that attaches; None for a consumer that never registered."""
    generation: int = 0
    """The generation of the assignment that the member attaches with."""
    read_compacted: bool = False
    principal: str = ""
    """The role of the consumer; empty without authentication."""
    bucket_hashes: HashRange | None = None
    """The only messages that a bulk reader wants; None for all."""


class ServedConsumer(Receiver):
    """A receiver on a connection. The counters only grow; rates are made from them elsewhere."""

    def __init__(
        self, link: ClientLink, consumer_id: int, name: str, options: ConsumerOptions | None = None
    ) -> None:
        self.options = options = options or ConsumerOptions()
        super().__init__(name, consumer_id, link, priority=options.priority, unacked_max=options.unacked_max)
        self.link: ClientLink = link
        self.epoch = options.epoch
        self.ranges: tuple[HashRange, ...] = ()
        self.outstanding: dict[int, None] = {}
        """Shared and Key_Shared: the entries that it got and did not acknowledge."""
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.messages_acked = 0
        self.messages_redelivered = 0
        """Messages that it asked for again."""
        self.last_sent_ms = 0
        self.last_acked_ms = 0
        self.meter: RateMeter | None = None
        self._end_notified = False
        self._registered = False
        """Whether the client is sure to know the consumer; some drop news of a consumer that they do not."""
        self._active: bool | None = None
        """The news for `notify_active` that waits until the client knows the consumer."""
        self.leaving = False
        """Whether its client waits for the answer to an UNSUBSCRIBE and needs no CLOSE_CONSUMER."""

    @property
    def counts_messages(self) -> bool:
        """Whether its client is ours: as a reader it counts messages and knows the mark of a gap."""
        return self.link.client_version.startswith(OUR_CLIENTS)

    def notify_end(self) -> None:
        """Notify the client, once, that the log is sealed and read; only clients that understand it."""
        if not self._end_notified:
            self._end_notified = True
            if self.link.hears_end_of_topic:
                self.link.send(pb.CommandReachedEndOfTopic(consumer_id=self.id))

    def notify_active(self, active: bool) -> None:
        """Failover: notify the client that this consumer reads now, or that another one does.

        The first news waits until the client knows the consumer: until its first FLOW, or for a while.
        """
        if self._registered:
            self.link.send(pb.CommandActiveConsumerChange(consumer_id=self.id, is_active=active))
            return
        if self._active is None:
            asyncio.get_running_loop().call_later(REGISTRATION_S, self._is_registered)
        self._active = active

    def grant(self, permits: int) -> None:
        super().grant(permits)
        if not self._registered:
            self._is_registered()

    def forget_news(self) -> None:
        """Send no news that waits, because the consumer has left."""
        self._active = None

    def _is_registered(self) -> None:
        self._registered = True
        if self._active is not None:
            self.notify_active(self._active)
            self._active = None

    def close(self, *, moved: bool = False) -> None:
        """Close the consumer from this side; its client attaches again. `moved`: it lost no entry by it."""
        self.link.forget_consumer(self.id)
        if not self.leaving:
            close = pb.CommandCloseConsumer(consumer_id=self.id, request_id=NO_ID)
            if moved:
                close.moved = True
            self.link.send(close)
