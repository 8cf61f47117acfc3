"""Reads the commands between brokers and clients on the simulated network, and notifies a listener.

Cuts the bytes of each accepted connection into commands and remembers which consumers are attached. Knows the
protocol and no invariant; must not change anything.
"""

from __future__ import annotations

from anabranch.broker.cluster.cluster_secret import PEER_VERSION
from anabranch.errors import RemoteProtocolError
from anabranch.model.ids import Position
from anabranch.model.names import TopicName
from anabranch.protocol.commands import NO_ID, Command, CommandCutter, Delivery, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.judges.wire_events import AckSeen, AttachSeen, RegistrationSeen, Watch, WireListener
from simulation.world.transport import SimTransport


class _TappedConnection:
    """The state of one connection, as far as its commands tell."""

    def __init__(self) -> None:
        self.of_a_broker = False
        self.incoming = CommandCutter()
        self.outgoing = CommandCutter()
        self.asked: dict[int, pb.CommandSubscribe] = {}
        self.consumers: dict[int, AttachSeen] = {}
        self.former: dict[int, AttachSeen] = {}
        self.producers: dict[int, TopicName] = {}
        self.acks: dict[int, tuple[AttachSeen, AckSeen]] = {}
        self.acking: list[AttachSeen] = []
        self.joining: dict[int, tuple[int, RegistrationSeen]] = {}
        self.members: dict[int, RegistrationSeen] = {}
        self.watches: dict[int, Watch] = {}

    def leave(self, consumer_id: int) -> RegistrationSeen | None:
        """The consumer that leaves; it may do so before the broker has answered its registration."""
        for request, (joining, member) in self.joining.items():
            if joining == consumer_id:
                del self.joining[request]
                return member
        return self.members.pop(consumer_id, None)


class WireTap:
    """The tap of one network."""

    def __init__(self, listener: WireListener) -> None:
        self._listener = listener
        self._ends: dict[SimTransport, _TappedConnection] = {}
        self._sent: dict[tuple[str, str], int] = {}
        """By client and topic: the newest epoch sent."""

    def open_watches(self) -> list[Watch]:
        """Return the open sessions whose client is connected."""
        return [
            watch
            for end, tapped in self._ends.items()
            for watch in tapped.watches.values()
            if watch.open and watch.sent >= 0 and not end.peer.is_closing()
        ]

    def sending(self, end: SimTransport, data: bytes) -> None:
        if end.accepted:
            tapped = self._ends.setdefault(end, _TappedConnection())
            for command in self._read(tapped.outgoing, data):
                self._handle_answer(end, tapped, command)

    def receiving(self, end: SimTransport, data: bytes) -> None:
        if end.accepted:
            tapped = self._ends.setdefault(end, _TappedConnection())
            for command in self._read(tapped.incoming, data):
                self._handle_request(end, tapped, command)

    def received(self, end: SimTransport) -> None:
        tapped = self._ends.get(end)
        if tapped is not None:
            for consumer in tapped.acking:
                self._listener.acknowledged(consumer)
            tapped.acking.clear()

    def ended(self, end: SimTransport) -> None:
        tapped = self._ends.pop(end, None)
        if tapped is not None:
            for consumer in tapped.consumers.values():
                self._listener.detached(consumer)
            for member in tapped.members.values():
                self._listener.registration_lost(member)
            if tapped.of_a_broker:
                self._listener.peer_lost(end.process, end.remote[0])

    def _read(self, cutter: CommandCutter, data: bytes) -> list[Command]:
        try:
            return cutter.read(data)
        except RemoteProtocolError:
            # The peer reports the same error.
            return []

    def _handle_request(self, end: SimTransport, tapped: _TappedConnection, command: Command) -> None:
        match command:
            case pb.CommandConnect():
                tapped.of_a_broker = command.client_version == PEER_VERSION
            case pb.CommandSubscribe():
                tapped.asked[command.request_id] = command
            case pb.CommandCloseConsumer():
                self._detach(tapped, command.consumer_id)
            case pb.CommandProducer():
                tapped.producers[command.producer_id] = TopicName.parse(command.topic)
            case pb.CommandAck():
                self._acknowledging(tapped, command)
            case pb.CommandScalableTopicSubscribe():
                topic = TopicName.parse(command.topic)
                asked = command.consumer_name, command.subscription
                member = RegistrationSeen(end.process, end.remote[0], *asked, topic)
                tapped.joining[command.request_id] = command.consumer_id, member
            case pb.CommandScalableTopicUnsubscribe():
                left = tapped.leave(command.consumer_id)
                if left is not None:
                    self._listener.leaving(left)
            case pb.CommandScalableTopicLookup():
                client = end.remote[0]
                known = self._sent.get((client, command.topic), -1)
                tapped.watches[command.session_id] = Watch(client, command.topic, known)
            case pb.CommandScalableTopicClose():
                tapped.watches.pop(command.session_id, None)
            case pb.CommandPeerCall():
                self._listener.peer_called(end.process, end.remote[0], command)

    def _handle_answer(self, end: SimTransport, tapped: _TappedConnection, command: Command) -> None:
        match command:
            case Delivery():
                consumer = tapped.consumers.get(command.consumer_id)
                if consumer is not None:
                    self._listener.dispatched(consumer, command)
            case SendReceipt():
                topic = tapped.producers.get(command.producer_id)
                if topic is not None and command.ledger != NO_ID:
                    self._listener.stored(topic, Position(command.ledger, command.entry))
            case pb.CommandSuccess():
                asked = tapped.asked.pop(command.request_id, None)
                if asked is not None:
                    self._attach(end, tapped, asked)
            case pb.CommandError():
                tapped.asked.pop(command.request_id, None)
            case pb.CommandCloseConsumer():
                self._detach(tapped, command.consumer_id)
                member = tapped.members.pop(command.consumer_id, None)
                if member is not None:
                    self._listener.registration_lost(member)
            case pb.CommandAckResponse():
                answered = tapped.acks.pop(command.request_id, None)
                if answered is not None:
                    if command.HasField("error"):
                        self._listener.ack_refused(answered[0])
                    else:
                        self._listener.ack_confirmed(*answered)
            case pb.CommandScalableTopicSubscribeResponse():
                joining = tapped.joining.pop(command.request_id, None)
                if joining is not None and not command.HasField("error"):
                    tapped.members[joining[0]] = joining[1]
                    self._listener.registered(joining[1], command.assignment)
            case pb.CommandScalableTopicAssignmentUpdate():
                member = tapped.members.get(command.consumer_id)
                if member is not None:
                    self._listener.assigned(member, command.assignment)
            case pb.CommandScalableTopicUpdate():
                self._layout_sent(tapped, command)

    def _attach(self, end: SimTransport, tapped: _TappedConnection, asked: pb.CommandSubscribe) -> None:
        consumer = AttachSeen(
            end.process,
            end.remote[0],
            asked.consumer_id,
            asked.consumer_name,
            asked.subscription,
            TopicName.parse(asked.topic),
            asked.durable,
            asked.subType,
        )
        tapped.consumers[consumer.id] = consumer
        self._listener.attached(consumer)

    def _detach(self, tapped: _TappedConnection, consumer_id: int) -> None:
        consumer = tapped.consumers.pop(consumer_id, None)
        if consumer is not None:
            tapped.former[consumer_id] = consumer
            self._listener.detached(consumer)

    def _acknowledging(self, tapped: _TappedConnection, command: pb.CommandAck) -> None:
        consumer = tapped.consumers.get(command.consumer_id) or tapped.former.get(command.consumer_id)
        if consumer is None:
            return
        whole = tuple(Position(id_.ledgerId, id_.entryId) for id_ in command.message_id if not id_.ack_set)
        if command.HasField("request_id"):
            acked = AckSeen(whole, command.ack_type == pb.CommandAck.Cumulative)
            tapped.acks[command.request_id] = consumer, acked
        self._listener.acknowledging(consumer)
        tapped.acking.append(consumer)

    def _layout_sent(self, tapped: _TappedConnection, update: pb.CommandScalableTopicUpdate) -> None:
        watch = tapped.watches.get(update.session_id)
        if watch is None:
            return
        if update.HasField("error") or not update.HasField("dag"):
            watch.open = False
            return
        epoch = update.dag.epoch
        self._listener.layout_sent(watch, epoch)
        watch.sent = epoch
        key = watch.client, watch.topic
        self._sent[key] = max(self._sent.get(key, -1), epoch)
