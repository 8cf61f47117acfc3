from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from google.protobuf.message import Message

from anabranch.broker.serving.rates.rate_gates import Pauses
from anabranch.broker.wire.publish_room import COUNT_S, SMALL_BYTES, ConnectionRoom, PublishRoom
from anabranch.config.broker import BrokerConfig
from anabranch.protocol.pb import pulsar_pb2 as pb

MIB = 2**20


@dataclass
class WaitingEntries:
    """A connection of which only the waiting bytes count."""

    publish_bytes: int


def room_of(*waiting_bytes: int) -> PublishRoom:
    config = BrokerConfig(publish_pending_bytes_max=4 * MIB, publish_pending_total_bytes_max=10 * MIB)
    return PublishRoom(config, [WaitingEntries(size) for size in waiting_bytes])


async def test_one_connection_may_have_its_limit() -> None:
    room = room_of(4 * MIB)
    assert not room.exceeded(4 * MIB)
    assert room.exceeded(4 * MIB + 1)
    assert not room.has_room(3 * MIB)
    assert room.has_room(2 * MIB)


async def test_all_together_may_have_less_than_the_sum_of_their_limits() -> None:
    room = room_of(4 * MIB, 4 * MIB, 2 * MIB, MIB)
    assert room.exceeded(MIB)
    assert not room.has_room(MIB)


async def test_a_connection_with_few_waiting_bytes_is_always_read() -> None:
    room = room_of(20 * MIB)
    assert not room.exceeded(SMALL_BYTES)
    assert room.has_room(SMALL_BYTES)
    assert room.has_room(0)


async def test_the_bytes_are_counted_again_after_a_while() -> None:
    busy = WaitingEntries(20 * MIB)
    config = BrokerConfig(publish_pending_bytes_max=4 * MIB, publish_pending_total_bytes_max=10 * MIB)
    room = PublishRoom(config, [busy])
    assert room.exceeded(MIB)
    busy.publish_bytes = 0
    await asyncio.sleep(COUNT_S)
    assert not room.exceeded(MIB)
    assert room.has_room(MIB)


class CreditedConnection:
    """A connection that records what its client is told, and whether the broker reads from it."""

    def __init__(self) -> None:
        self.publish_bytes = 0
        self.throttled = False
        self.told: list[int] = []
        self.reasons: set[object] = set()

    @property
    def pauses(self) -> Pauses:
        return cast(Pauses, self.reasons)

    def send(self, command: Message) -> None:
        assert isinstance(command, pb.CommandProducerCredit)
        if command.HasField("taken_bytes"):
            self.told.append(command.taken_bytes)


def credited() -> tuple[CreditedConnection, WaitingEntries, ConnectionRoom]:
    config = BrokerConfig(
        publish_pending_bytes_max=16 * MIB, publish_pending_total_bytes_max=20 * MIB, publish_credit_bytes=MIB
    )
    connection, other = CreditedConnection(), WaitingEntries(0)
    room = ConnectionRoom(PublishRoom(config, [connection, other]), connection)
    room.grant()
    return connection, other, room


async def test_taken_bytes_are_told_in_parts() -> None:
    connection, _, room = credited()
    for _ in range(8):
        room.took(MIB // 8)
    assert connection.told == [MIB // 4, MIB // 2, MIB // 4 * 3, MIB]
    assert not connection.throttled


async def test_a_connection_gets_no_credit_while_much_waits_for_the_disk() -> None:
    connection, _, room = credited()
    connection.publish_bytes = 3 * MIB
    room.took(MIB)
    assert connection.told == []
    assert connection.throttled
    connection.publish_bytes = 2 * MIB
    room.resume()
    assert connection.told == [MIB]
    assert not connection.throttled
    assert not connection.reasons


async def test_credit_is_scarce_before_connections_pause() -> None:
    connection, other, room = credited()
    connection.publish_bytes, other.publish_bytes = MIB, 11 * MIB
    room.took(MIB)
    room.check()
    assert connection.told == []
    assert not connection.reasons
    connection.publish_bytes = SMALL_BYTES
    room.resume()
    assert connection.told == [MIB], "each connection makes progress"


async def test_a_connection_beyond_its_credit_is_not_read() -> None:
    connection, _, room = credited()
    connection.publish_bytes = 17 * MIB
    room.check()
    assert connection.reasons == {"publishes"}
    connection.publish_bytes = 0
    room.resume()
    assert not connection.reasons
    assert not connection.throttled
