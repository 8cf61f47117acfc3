"""One consumer of a subscription: what it asked for, what it got."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.serving.client_link import ClientLink
from anabranch.model.ranges import HashRange
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb


class ServedConsumer(Receiver):
    """A receiver on a connection. The counters only grow; rates are made from them elsewhere."""

    __slots__ = (
        "acked",
        "bytes_out",
        "connected_at_ms",
        "entries_out",
        "epoch",
        "generation",
        "last_acked_ms",
        "last_sent_ms",
        "leaving",
        "link",
        "member",
        "messages_out",
        "metadata",
        "ranges",
        "told_end",
    )

    def __init__(
        self,
        link: ClientLink,
        consumer_id: int,
        name: str,
        *,
        priority: int = 0,
        unacked_max: int = 2**62,
        epoch: int | None = None,
        metadata: Mapping[str, str] | None = None,
        connected_at_ms: int = 0,
        member: str | None = None,
        generation: int = 0,
    ) -> None:
        super().__init__(name, consumer_id, link, priority=priority, unacked_max=unacked_max)
        self.link = link
        self.epoch = epoch
        """Echoed in each MESSAGE; the client drops what was sent before its last full redelivery."""
        self.ranges: tuple[HashRange, ...] = ()
        self.metadata = dict(metadata or {})
        self.connected_at_ms = connected_at_ms
        self.member = member
        """The registered consumer it belongs to, and the generation it was let in with."""
        self.generation = generation
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.acked = 0
        self.last_sent_ms = 0
        self.last_acked_ms = 0
        self.told_end = False
        self.leaving = False
        """Its client asks for its end just now, and is answered."""

    def tell_end(self) -> None:
        """Nothing will come any more; told once, and only to peers that can hear it."""
        if not self.told_end:
            self.told_end = True
            if self.link.hears_end_of_topic:
                self.link.send(pb.CommandReachedEndOfTopic(consumer_id=self.id))

    def tell_active(self, active: bool) -> None:
        """Failover: this consumer reads now, or does not."""
        self.link.send(pb.CommandActiveConsumerChange(consumer_id=self.id, is_active=active))

    def close(self, *, moved: bool = False) -> None:
        """Take the consumer from its client, which is to subscribe again; `moved` if it lost nothing."""
        self.link.forget_consumer(self.id)
        if not self.leaving:
            close = pb.CommandCloseConsumer(consumer_id=self.id, request_id=NO_ID)
            if moved:
                close.moved = True
            self.link.send(close)
