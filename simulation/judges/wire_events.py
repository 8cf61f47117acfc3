"""The events that a wire tap reports: of consumers, registrations, acknowledgements and layout watches."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.model.ids import Position
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.process import SimProcess


@dataclass(eq=False, slots=True)
class AttachSeen:
    """A consumer of one log, from the broker's answer to SUBSCRIBE until either side closes it."""

    broker: SimProcess | None
    client: str
    id: int
    name: str
    subscription: str
    topic: TopicName
    durable: bool
    kind: int
    in_flight: dict[Position, Delivery] = field(default_factory=dict)
    """Entries that the consumer received and that are not known to be acknowledged."""

    @property
    def segment(self) -> int:
        return -1 if self.topic.segment is None else self.topic.segment.id

    @property
    def alone(self) -> bool:
        """Whether the consumer reads the whole log."""
        return self.kind in (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)

    def __str__(self) -> str:
        return f"{self.name} on segment {self.segment}"


@dataclass(eq=False, slots=True)
class RegistrationSeen:
    """A consumer that registered with the leader of its topic."""

    broker: SimProcess | None
    """The broker at the other end of the connection, which may forward requests to the leader."""
    client: str
    name: str
    subscription: str
    topic: TopicName
    generation: int = 0
    """The generation of the last assignment sent to the consumer."""


@dataclass(frozen=True, slots=True)
class AckSeen:
    """The positions of one ACK."""

    positions: tuple[Position, ...]
    cumulative: bool

    def covers(self, position: Position) -> bool:
        """Whether the ACK acknowledges a whole entry."""
        if self.cumulative:
            return any(position <= last for last in self.positions)
        return position in self.positions


class WireListener:
    """Receives the events of a wire tap, at the broker's side; a subclass overrides the ones it needs."""

    def attached(self, consumer: AttachSeen) -> None:
        """A broker accepted a consumer on a log."""

    def detached(self, consumer: AttachSeen) -> None:
        """The consumer closed, the broker closed it, or its connection ended."""

    def dispatched(self, consumer: AttachSeen, delivery: Delivery) -> None:
        """A broker sent an entry to a consumer."""

    def acknowledging(self, consumer: AttachSeen) -> None:
        """An ACK has arrived; the broker has not handled it yet."""

    def acknowledged(self, consumer: AttachSeen) -> None:
        """The broker has handled the ACK."""

    def ack_confirmed(self, consumer: AttachSeen, acked: AckSeen) -> None:
        """The broker confirmed that an acknowledgement is stored."""

    def ack_refused(self, consumer: AttachSeen) -> None:
        """The broker answered an ACK with an error."""

    def stored(self, topic: TopicName, position: Position) -> None:
        """A producer received the receipt of an entry."""

    def registered(self, member: RegistrationSeen, assignment: pb.ScalableConsumerAssignment) -> None:
        """A consumer registered and received its first assignment."""

    def assigned(self, member: RegistrationSeen, assignment: pb.ScalableConsumerAssignment) -> None:
        """A registered consumer was sent another assignment."""

    def leaving(self, member: RegistrationSeen) -> None:
        """A consumer asked to leave its group."""

    def registration_lost(self, member: RegistrationSeen) -> None:
        """The consumer's connection ended, or its broker closed the registration."""

    def peer_called(self, broker: SimProcess | None, peer: str, call: pb.CommandPeerCall) -> None:
        """Another broker's call has arrived at this broker."""

    def peer_lost(self, broker: SimProcess | None, peer: str) -> None:
        """A connection that another broker had made to this broker ended."""

    def layout_sent(self, watch: Watch, epoch: int) -> None:
        """A client that watches a topic was sent a layout."""


@dataclass(eq=False, slots=True)
class Watch:
    """One session in which a client watches a layout."""

    client: str
    topic: str
    known: int
    """The newest epoch that the client had received in any session when it asked."""
    sent: int = -1
    open: bool = True
