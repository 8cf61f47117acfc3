"""Producers that wait for credit, with a broker that the test controls."""

from __future__ import annotations

import asyncio
import math

from anabranch.client.decide.producing.outgoing import FAILED
from anabranch.errors import TopicTerminatedError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for
from tests.unit.client.fakes import FakeConnection, FakeHome, FakePool, settle_down, success


def limit(connection: FakeConnection, bytes_max: float = math.inf, messages_max: float = math.inf) -> None:
    """Tell the only producer of a connection its limits."""
    (producer,) = connection.producers.values()
    producer.credit.limit(bytes_max, messages_max)
    producer.credited()


async def attached(home: FakeHome) -> FakeConnection:
    await settle_down()
    return home.pool.connections[-1]


async def test_entries_wait_for_credit_and_leave_in_order() -> None:
    home = FakeHome(FakePool(lambda message: success()))
    segment = home.segment()
    connection = await attached(home)
    limit(connection, messages_max=2)
    home.add(segment, 5)
    assert connection.sequences() == [[0], [1]]
    connection.receipt(0)
    assert connection.sequences() == [[0], [1], [2]], "a receipt gives the credit of its entry back"
    limit(connection, messages_max=10)
    assert connection.sequences() == [[0], [1], [2], [3], [4]]


async def test_no_credit_stops_a_producer_until_the_broker_gives_some() -> None:
    home = FakeHome(FakePool(lambda message: success()))
    segment = home.segment()
    connection = await attached(home)
    limit(connection, 0)
    home.add(segment, 3)
    assert connection.pump.written == []
    assert home.credit_waits.count == 1
    assert segment.sender.waiting_bytes == home.memory.used > 0
    await asyncio.sleep(7.0)
    limit(connection, 1)
    assert connection.sequences() == [[0]], "any credit lets one entry pass"
    connection.receipt(0)
    connection.receipt(1)
    connection.receipt(2)
    assert home.credit_waits.seconds(home.loop.time()) == 7.0
    assert segment.sender.waiting_bytes == 0
    assert home.credit_waits.count == 1


async def test_an_open_batch_grows_while_there_is_no_credit() -> None:
    home = FakeHome(FakePool(lambda message: success()), max_messages=100)
    segment = home.segment()
    connection = await attached(home)
    limit(connection, 0)
    home.add(segment, 10)
    await asyncio.sleep(1.0)
    home.add(segment, 10)
    await asyncio.sleep(1.0)
    limit(connection)
    assert connection.sequences() == [list(range(20))]


async def test_producers_of_a_connection_take_turns_for_its_credit() -> None:
    home = FakeHome(FakePool(lambda message: success()))
    segments = [home.segment(), home.segment()]
    connection = await attached(home)
    connection.credit.limit(1)
    for _ in range(3):
        for segment in segments:
            home.add(segment, 1)
    for _ in range(5):
        connection.credit.taken(connection.credit.sent_bytes)
    assert connection.sequences() == [[0], [1], [2], [3], [4], [5]]


async def test_the_credit_of_a_lost_connection_does_not_limit_the_next_one() -> None:
    home = FakeHome(FakePool(lambda message: success()))
    segment = home.segment()
    first = await attached(home)
    limit(first, 0)
    home.add(segment, 3)
    first.lose()
    second = await attached(home)
    assert second.sequences() == [[0], [1], [2]]
    assert home.credit_waits.seconds(home.loop.time()) <= 0.01


async def test_messages_without_credit_are_taken_back_from_a_sealed_segment() -> None:
    home = FakeHome(FakePool(lambda message: success(0)))
    segment = home.segment()
    connection = await attached(home)
    limit(connection, messages_max=1)
    home.add(segment, 3)
    error = pb.CommandSendError(
        producer_id=1, sequence_id=0, error=code_for(TopicTerminatedError("")), message=""
    )
    segment.send_error(error)
    segment.depart()
    await settle_down()
    assert segment.life.settled
    assert [batch.sequence for batch in segment.sender.take_back()] == [1, 2]
    assert segment not in home.credit_waits


async def test_a_receipt_for_an_expired_entry_gives_its_credit_back() -> None:
    home = FakeHome(FakePool(lambda message: success()))
    segment = home.segment()
    connection = await attached(home)
    limit(connection, messages_max=2)
    old = home.add(segment, 2)
    await asyncio.sleep(31.0)
    segment.sender.expire(home.loop.time(), 30.0)
    assert [batch.state for batch in old] == [FAILED, FAILED]
    home.add(segment, 2)
    assert connection.sequences() == [[0], [1]], "the broker has not answered them yet"
    connection.receipt(0)
    assert connection.sequences() == [[0], [1], [2]]
    connection.receipt(1)
    assert connection.sequences() == [[0], [1], [2], [3]]
    connection.receipt(2)
    connection.receipt(3)
    assert not segment.sender.sent


async def test_entries_that_expire_without_credit_end_the_wait() -> None:
    home = FakeHome(FakePool(lambda message: success()))
    segment = home.segment()
    connection = await attached(home)
    limit(connection, 0)
    home.add(segment, 2)
    await asyncio.sleep(31.0)
    segment.sender.expire(home.loop.time(), 30.0)
    assert segment not in home.credit_waits
    limit(connection)
    home.add(segment, 1)
    assert connection.sequences() == [[2]]
