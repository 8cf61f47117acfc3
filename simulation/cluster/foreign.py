"""An Anabranch broker in the role of a Pulsar broker: without our extensions, and with Pulsar's defects.

- A terminate may leave appends pending. Such a topic answers no new producer and no new consumer until it is
  unloaded, or until its broker is gone.
- A topic that moved to another broker, or was recovered by one, has an empty ledger at its end. Once it is
  terminated, its last message id is entry -1 of that ledger, as if the topic were empty.
- A subscription is made at the end and moved then. Between the two its creation may fail.
"""

from __future__ import annotations

import random
from typing import Final

from google.protobuf.message import Message

from anabranch.broker.broker import Broker
from anabranch.broker.serving.subscription.acknowledging import mark_delete
from anabranch.model.ids import Position
from anabranch.model.names import TopicName
from anabranch.protocol.commands import NO_ID, Command, encode
from anabranch.protocol.connection import ServerMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import Pump, PumpHandler

OWN_FIELDS: Final = 1000
"""Fields with higher numbers are ours; a Pulsar skips them."""


class ForeignTopics:
    """The state of topics that only a Pulsar has."""

    def __init__(self, rng: random.Random) -> None:
        self.stuck_chance = 0.0
        """How probable it is that a terminate leaves appends pending."""
        self.move_chance = 0.0
        """How probable it is that a topic moves to another broker right before it is terminated."""
        self.interrupt_chance = 0.0
        """How probable it is that the creation of a subscription ends before it is moved from the end."""
        self.pending: dict[str, int] = {}
        """By topic: appends that were under way when it was terminated, and never complete."""
        self.stuck = 0
        """How often that happened."""
        self.ended_empty = 0
        """How often a last message id was entry -1 though the topic has messages."""
        self._recovered: dict[str, int] = {}
        """By topic: its number of entries when its last ledger was opened."""
        self._rng = rng

    def terminated(self, topic: TopicName, entries: int) -> None:
        if self._rng.random() < self.move_chance:
            self._recovered[str(topic)] = entries
        if self._rng.random() < self.stuck_chance:
            self.pending[str(topic)] = self._rng.randrange(1, 5)
            self.stuck += 1

    def interrupts_creation(self) -> bool:
        """Whether the creation of a subscription fails half-way this time."""
        return self.interrupt_chance > 0.0 and self._rng.random() < self.interrupt_chance

    def unloaded(self, topic: TopicName) -> None:
        self.pending.pop(str(topic), None)

    def recover(self, broker: Broker) -> None:
        """Note that a broker dies, and that its topics are recovered by another one."""
        for name in broker.stores.names():
            self.pending.pop(name, None)
            log = broker.stores.get(name)
            if log is not None and not log.sealed:
                self._recovered[name] = log.extent.next_ordinal

    def empty_end(self, broker: Broker, topic: str) -> int | None:
        """The ledger whose entry -1 is the end of a topic; None for a topic that ends with a message."""
        log = broker.stores.get(topic)
        if log is None or not log.sealed or self._recovered.get(topic) != log.extent.next_ordinal:
            return None
        end = log.extent.next_ordinal
        if end == log.extent.first_ordinal:
            return 0
        self.ended_empty += 1
        return log.extent.position_of(end - 1).ledger + 1


class Foreign:
    """Stands between a pump and its broker."""

    def __init__(self, handler: PumpHandler, broker: Broker, topics: ForeignTopics) -> None:
        self._handler = handler
        self._broker = broker
        self._topics = topics
        self._consumers: dict[int, tuple[str, str]] = {}
        """Topic and subscription of each consumer."""

    def connected(self, pump: Pump) -> None:
        assert isinstance(pump.machine, ServerMachine)
        pump.machine.version = "Pulsar Server 4.0.7"
        pump.machine.peer_is_ours = False
        self._handler.connected(pump)

    def commands(self, pump: Pump, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Message):
                for extension, _ in command.ListFields():
                    if extension.number > OWN_FIELDS:
                        command.ClearField(extension.name)
        self._handler.commands(pump, [command for command in commands if not self._answers(pump, command)])

    def closed(self, pump: Pump, error: Exception | None) -> None:
        self._handler.closed(pump, error)

    def _answers(self, pump: Pump, command: Command) -> bool:
        """Whether the command ends here, with an answer of Pulsar's own or with none."""
        match command:
            case pb.CommandSubscribe():
                self._consumers[command.consumer_id] = command.topic, command.subscription
                return command.topic in self._topics.pending
            case pb.CommandProducer():
                return command.topic in self._topics.pending
            case pb.CommandGetLastMessageId():
                topic, subscription = self._consumers.get(command.consumer_id, ("", ""))
                ledger = self._topics.empty_end(self._broker, topic)
                mark = None if ledger is None else self._mark(TopicName.parse(topic), subscription)
                if ledger is None or mark is None:
                    return False
                answer = pb.CommandGetLastMessageIdResponse(request_id=command.request_id)
                answer.last_message_id.ledgerId, answer.last_message_id.entryId = ledger, NO_ID
                answer.consumer_mark_delete_position.ledgerId = mark.ledger % 2**64
                answer.consumer_mark_delete_position.entryId = mark.entry % 2**64
                pump.write(encode(answer))
                return True
            case _:
                return False

    def _mark(self, topic: TopicName, name: str) -> Position | None:
        """The cursor of a subscription, as Pulsar tells it; None without the subscription."""
        served = self._broker.logs.require(topic)
        subscription = served.subscriptions.get(name)
        return None if subscription is None else mark_delete(served.log, subscription.cursor)
