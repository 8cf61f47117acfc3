"""The largest legal form of every command, at a real broker: a ping of another client stays short."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from anabranch.broker.serving.reading.strategies import kind_name
from anabranch.protocol import commands
from anabranch.protocol.commands import Command, CommandCutter, Delivery
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.limits import IDS_MAX, LIMITS
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.harness.process import BrokerProcess
from tests.harness.largest import command_with
from tests.harness.wire import TOPIC, single

pytestmark = pytest.mark.timed

T = TypeVar("T")
MakeBroker = Callable[..., BrokerProcess]

PING_S = 0.25
"""Longest ping that a command may cause, beyond the longest ping before it."""

LAST = 9
"""The request id of the command behind the largest one."""

ATTEMPTS = 3
"""How often a slow ping is tried again, because another process may have had the processor."""


class Peer:
    """A blocking connection that sends and receives single commands."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        self._cutter = CommandCutter()
        self._inbox: list[Command] = []
        self.send(pb.CommandConnect(client_version="Anabranch-Test", protocol_version=21))
        self.take(pb.CommandConnected)

    def close(self) -> None:
        self.socket.close()

    def send(self, command: Message) -> None:
        self.socket.sendall(commands.encode(command))

    def take(self, kind: type[T]) -> T | None:
        """The next command of this kind, None at the end; others are dropped, and a PING is answered."""
        while True:
            while self._inbox:
                command = self._inbox.pop(0)
                if isinstance(command, pb.CommandPing):
                    self.send(pb.CommandPong())
                if isinstance(command, kind):
                    return command
            data = self.socket.recv(2**18)
            if not data:
                return None
            self._inbox += self._cutter.read(data)


@contextmanager
def pings(broker: BrokerProcess) -> Iterator[list[float]]:
    """The seconds of each ping, sent by a thread of its own one after the other."""
    peer, seconds, done = Peer(broker), [0.0], threading.Event()

    def ping() -> None:
        while not done.is_set():
            began = time.monotonic()
            peer.send(pb.CommandPing())
            peer.take(pb.CommandPong)
            seconds.append(time.monotonic() - began)
            time.sleep(0.002)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield seconds
    finally:
        done.set()
        thread.join()
        peer.close()


def attach(peer: Peer, kind: int) -> None:
    """Open producer 1 and subscribe consumer 1, with more permits than any test needs."""
    peer.send(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
    peer.take(pb.CommandProducerSuccess)
    subscribe = pb.CommandSubscribe(
        topic=TOPIC,
        subscription=kind_name(kind),
        subType=pb.CommandSubscribe.SubType.ValueType(kind),
        consumer_id=1,
        request_id=2,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    peer.send(subscribe)
    peer.take(pb.CommandSuccess)
    peer.send(pb.CommandFlow(consumer_id=1, messagePermits=IDS_MAX))


def hold(peer: Peer) -> list[pb.MessageIdData]:
    """Let the consumer receive as many entries as one ACK may name; their ids."""
    entry = single(b"v", 0)
    ids = []
    for first in range(0, IDS_MAX, 500):
        batch = [encode_send(1, number, 1, 0, entry) for number in range(first, first + 500)]
        peer.socket.sendall(b"".join(buffer for frame in batch for buffer in frame))
        for _ in range(500):
            got = peer.take(Delivery)
            assert got is not None
            ids.append(pb.MessageIdData(ledgerId=got.ledger, entryId=got.entry))
    return ids


def longest_ping(seconds: list[float], peer: Peer, command: Message) -> float:
    """The longest ping until the broker has carried out a command of another connection."""
    at = len(seconds)
    # The broker hangs up on a second CONNECT.
    with suppress(ConnectionError):
        peer.send(command)
        peer.send(pb.CommandLookupTopic(topic=TOPIC, request_id=LAST))
        while (answer := peer.take(pb.CommandLookupTopicResponse)) is not None and answer.request_id != LAST:
            pass
    while len(seconds) <= at + 1:
        time.sleep(0.002)
    return max(seconds[at:])


def test_the_largest_commands_do_not_delay_the_ping_of_another_client(make_broker: MakeBroker) -> None:
    broker = make_broker(max_unacked_per_consumer=0, max_unacked_per_subscription=0).start()
    slow: dict[str, list[float]] = {}
    with pings(broker) as seconds:
        time.sleep(1.0)
        before = max(seconds)
        holder = Peer(broker)
        attach(holder, pb.CommandSubscribe.Shared)
        ids = hold(holder)
        largest = {
            "redelivery": pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids),
            "all again": pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1),
            "acknowledgement": pb.CommandAck(
                consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids
            ),
        }
        fields = sorted(set(LIMITS) - {"CommandPeerCall.arguments"})
        for name, command in [*largest.items(), *((field, command_with(field)) for field in fields)]:
            for _ in range(ATTEMPTS):
                if name in largest:
                    took = longest_ping(seconds, holder, command)
                else:
                    with closing(Peer(broker)) as peer:
                        took = longest_ping(seconds, peer, command)
                if took < PING_S + before:
                    break
                slow.setdefault(name, []).append(took)
        holder.close()
        assert not {name: tries for name, tries in slow.items() if len(tries) == ATTEMPTS}
    assert "Traceback" not in broker.log_text
    assert broker.stop() == 0
