"""One segment's producer with a broker that the test controls."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.client.decide.producing.outgoing import FAILED, OPEN, STORED
from anabranch.client.decide.producing.producer_life import ProducerState
from anabranch.client.net.trouble import RoleTrouble
from anabranch.errors import (
    AuthenticationError,
    AuthorizationError,
    ProducerBusyError,
    ServiceNotReadyError,
    TopicTerminatedError,
)
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.fakes import FakeHome, FakePool, settle_down, success


def is_settling(message: Any) -> bool:
    return isinstance(message, pb.CommandProducer) and any(
        pair.key == "anabranch.settle" for pair in message.metadata
    )


async def test_unanswered_entries_are_sent_again_in_order_after_a_loss() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (first,) = pool.connections
    first.pump.room = 3
    home.add(segment, 6)
    assert first.sequences() == [[0], [1], [2]], "the connection takes no more"
    first.receipt(0)
    first.lose()
    await settle_down()
    assert pool.connections[1].sequences() == [[1], [2], [3], [4], [5]]
    assert pool.connections[1].pump.written[:2] == first.pump.written[1:]


async def test_a_connection_lost_during_the_registration_is_replaced_at_once() -> None:
    pool = FakePool(lambda message: asyncio.get_running_loop().create_future())
    segment = FakeHome(pool).segment()
    await settle_down()
    pool.answer = lambda message: success()
    pool.connections[0].lose()
    await settle_down()
    assert segment.is_attached
    assert pool.asked == [None, None]


async def test_entries_that_the_broker_has_stored_are_not_sent_again() -> None:
    last = -1
    pool = FakePool(lambda message: success(last))
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    batches = home.add(segment, 4)
    last = 1
    pool.connections[0].lose()
    await settle_down()
    assert [batch.state for batch in batches] == [STORED, STORED, OPEN, OPEN]
    assert batches[0].place == (0, -1, -1)
    assert pool.connections[1].sequences() == [[2], [3]]
    assert home.memory.used == sum(batch.size for batch in batches[2:])


async def test_a_writable_connection_gets_the_rest_in_order() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (connection,) = pool.connections
    connection.pump.room = 2
    home.add(segment, 5)
    assert len(connection.pump.written) == 2
    connection.pump.room = 10
    for resume in list(connection.on_writable):
        resume()
    assert connection.sequences() == [[0], [1], [2], [3], [4]]


async def test_batches_grow_while_the_connection_is_busy_or_lost() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool, max_messages=100, max_delay=0.001)
    segment = home.segment()
    home.add(segment, 3)
    await settle_down()
    (connection,) = pool.connections
    assert connection.sequences() == [[0, 1, 2]], "messages from before the connection leave together"
    connection.pump.room = 1
    for _ in range(5):
        home.add(segment, 1)
        await settle_down()
    assert len(connection.pump.written) == 1
    connection.pump.room = 10
    for resume in list(connection.on_writable):
        resume()
    assert connection.sequences()[1:] == [[3, 4, 5, 6, 7]]


async def test_an_idle_segment_sends_at_once_and_a_busy_one_after_the_delay() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool, max_messages=100, max_delay=1.0)
    segment = home.segment()
    await settle_down()
    (connection,) = pool.connections
    home.add(segment, 2)
    await asyncio.sleep(0)
    assert connection.sequences() == [[0, 1]]
    home.add(segment, 2)
    await asyncio.sleep(0.5)
    assert len(connection.pump.written) == 1, "more may join while the first is under way"
    await asyncio.sleep(0.6)
    assert connection.sequences()[1:] == [[2, 3]]
    home.add(segment, 1)
    connection.receipt(1)
    connection.receipt(3)
    assert connection.sequences()[2:] == [[4]], "no entry is under way"


async def test_receipts_complete_entries_in_order_and_strange_ones_do_no_harm() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (connection,) = pool.connections
    batches = home.add(segment, 3)
    connection.receipt(0, ledger=7, entry=8)
    connection.receipt(0)
    assert batches[0].place == (0, 7, 8)
    connection.duplicate(1)
    assert batches[1].state == STORED
    assert batches[1].place == (0, -1, -1)
    connection.receipt(99)
    await settle_down()
    assert batches[2].state == OPEN
    assert connection.sequences()[3:] == [[2]], "out of step: registered and sent again"


async def test_an_entry_that_is_not_allowed_fails_alone() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (connection,) = pool.connections
    batches = home.add(segment, 2)
    (producer_id,) = connection.producers
    segment.send_error(
        pb.CommandSendError(
            producer_id=producer_id, sequence_id=0, error=pb.NotAllowedError, message="too large"
        )
    )
    assert [batch.state for batch in batches] == [FAILED, OPEN]
    assert home.failures == [batches[0]]
    connection.receipt(1)
    assert batches[1].state == STORED


async def test_other_errors_lead_to_a_new_registration() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (connection,) = pool.connections
    home.add(segment, 2)
    (before,) = connection.producers
    segment.send_error(
        pb.CommandSendError(producer_id=before, sequence_id=0, error=pb.PersistenceError, message="disk")
    )
    await asyncio.sleep(0.2)
    assert list(connection.producers) != [before]
    assert connection.sequences() == [[0], [1], [0], [1]]
    epochs = [m.epoch for m in connection.sent if isinstance(m, pb.CommandProducer)]
    assert epochs == [0, 1]


async def test_a_sealed_segment_is_asked_what_it_has_stored() -> None:
    sealed = False

    def answer(message: Any) -> Any:
        if is_settling(message):
            return success(1)
        return TopicTerminatedError("sealed") if sealed else success()

    pool = FakePool(answer)
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (connection,) = pool.connections
    batches = home.add(segment, 4)
    sealed = True
    connection.producers.clear()
    segment.closed_by_broker()
    await settle_down()
    assert segment.life.state is ProducerState.SETTLED
    assert home.routes.transfers == 1
    later = home.add(segment, 2)
    assert [batch.state for batch in batches] == [STORED, STORED, OPEN, OPEN]
    segment.depart()
    assert segment.sender.take_back() == [*batches[2:], *later]
    assert home.memory.used == 0


async def test_a_segment_that_answered_every_entry_before_its_seal_is_not_asked() -> None:
    asked: list[Any] = []

    def answer(message: Any) -> Any:
        asked.append(message)
        return success()

    pool = FakePool(answer)
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    batches = home.add(segment, 3)
    pool.connections[0].producers.clear()
    segment.closed_by_broker(sealed=True)
    assert segment.life.state is ProducerState.SETTLED
    segment.depart()
    await settle_down()
    assert len(asked) == 1, "the registration, and no question"
    assert segment.sender.take_back() == batches
    assert home.memory.used == 0


async def test_a_sealed_segment_is_asked_again_while_credentials_are_refused() -> None:
    refused = True

    def answer(message: Any) -> Any:
        if is_settling(message):
            return AuthenticationError("expired") if refused else success(0)
        return success()

    pool = FakePool(answer)
    home = FakeHome(pool)
    role = RoleTrouble(lambda: "topic", lambda _: False)
    role.opened = True
    home.use(role=role)
    segment = home.segment()
    await settle_down()
    batches = home.add(segment, 2)
    segment.send_error(
        pb.CommandSendError(producer_id=1, error=pb.TopicTerminatedError, message="", sequence_id=0)
    )
    await asyncio.sleep(1)
    assert segment.life.state is ProducerState.SETTLING
    refused = False
    await asyncio.sleep(10)
    assert not segment.in_doubt
    assert [batch.state for batch in batches] == [STORED, OPEN]


async def test_a_seal_that_failed_lets_the_segment_go_on() -> None:
    sealed = True

    def answer(message: Any) -> Any:
        if is_settling(message):
            return success()
        return TopicTerminatedError("sealed") if sealed else success()

    pool = FakePool(answer)
    home = FakeHome(pool)
    segment = home.segment()
    batches = home.add(segment, 3)
    await settle_down()
    assert segment.life.settled
    sealed = False
    await asyncio.sleep(2.0)
    assert segment.life.state is ProducerState.ATTACHED
    assert pool.connections[0].sequences() == [[0], [1], [2]]
    assert all(batch.state == OPEN for batch in batches)


async def test_a_layout_that_is_ahead_of_the_receipts_waits_for_them() -> None:
    pool = FakePool(lambda message: success(0))
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (connection,) = pool.connections
    batches = home.add(segment, 2)
    segment.depart()
    await asyncio.sleep(0.5)
    assert not segment.life.settled
    connection.receipt(0, ledger=3, entry=4)
    assert batches[0].place == (0, 3, 4), "the receipt also says where it is stored"
    await asyncio.sleep(1.0)
    assert segment.life.settled, "the broker was asked when no more receipts came"
    assert segment.sender.take_back() == [batches[1]]


async def test_departing_without_doubts_needs_no_question() -> None:
    pool = FakePool(lambda message: ServiceNotReadyError("not now"))
    home = FakeHome(pool)
    segment = home.segment()
    batches = home.add(segment, 2)
    await settle_down()
    segment.depart()
    await settle_down()
    assert segment.life.settled
    assert segment.sender.take_back() == batches
    assert not any(is_settling(message) for message in pool.connections[0].sent)


async def test_a_refusal_that_will_not_change_fails_the_messages() -> None:
    pool = FakePool(lambda message: AuthorizationError("no"))
    home = FakeHome(pool)
    segment = home.segment()
    (batch,) = home.add(segment, 1)
    await settle_down()
    assert batch.state == FAILED
    assert isinstance(batch.error, AuthorizationError)
    assert isinstance(segment.attached.exception(), AuthorizationError)


async def test_a_name_in_use_is_final_at_first_and_a_stale_connection_later() -> None:
    busy: Any = ProducerBusyError("in use")
    pool = FakePool(lambda message: busy or success())
    home = FakeHome(pool)
    first = home.segment()
    await settle_down()
    assert isinstance(first.attached.exception(), ProducerBusyError)
    busy = None
    segment = home.segment()
    await settle_down()
    busy = ProducerBusyError("the broker has not noticed yet")
    pool.connections[-1].lose()
    home.add(segment, 1)
    await asyncio.sleep(5.0)
    busy = None
    await asyncio.sleep(10.0)
    assert pool.connections[-1].sequences() == [[1 - 1]]


async def test_a_first_registration_without_an_answer_may_hold_the_name() -> None:
    pool = FakePool(lambda message: asyncio.get_running_loop().create_future())
    segment = FakeHome(pool).segment()
    await settle_down()
    pool.answer = lambda message: ProducerBusyError("already connected")
    pool.connections[0].lose()
    await asyncio.sleep(5.0)
    assert not segment.attached.done()
    pool.answer = lambda message: success()
    await asyncio.sleep(10.0)
    assert segment.is_attached


async def test_closing_gives_the_registration_back() -> None:
    pool = FakePool(
        lambda message: success() if isinstance(message, pb.CommandProducer) else pb.CommandSuccess()
    )
    home = FakeHome(pool)
    segment = home.segment()
    await settle_down()
    (batch,) = home.add(segment, 1)
    segment.hang_up()
    assert batch.state == FAILED
    assert isinstance(pool.connections[0].sent[-1], pb.CommandCloseProducer)
    assert home.memory.used == 0
