"""Which connection holds a name, and for how long."""

from __future__ import annotations

import pytest

from anabranch.controller.decide.name_holds import (
    CancelTimer,
    ConnectionLost,
    ConsumerGone,
    ConsumerJoined,
    NameHold,
    NameHolds,
    StartTimer,
)
from anabranch.controller.decide.registration_request import PLAIN_REQUEST
from anabranch.errors import ConsumerBusyError


def test_a_living_holder_keeps_its_name() -> None:
    holds = NameHolds()
    assert holds.handle(ConsumerJoined("s", "a", 1)) == ()
    with pytest.raises(ConsumerBusyError, match="a is connected"):
        holds.handle(ConsumerJoined("s", "a", 2))
    assert holds.named("s", "a") == NameHold("s", "a", 1, PLAIN_REQUEST, True)


def test_a_lost_holder_is_followed_by_the_next_consumer_within_the_grace_period() -> None:
    holds = NameHolds()
    holds.handle(ConsumerJoined("s", "a", 1))
    assert holds.handle(ConnectionLost(1)) == (StartTimer(1),)
    assert holds.handle(ConsumerJoined("s", "a", 2)) == (CancelTimer(1),)
    assert holds.named("s", "a") == NameHold("s", "a", 2, PLAIN_REQUEST, True)


def test_events_of_an_old_connection_change_nothing() -> None:
    holds = NameHolds()
    holds.handle(ConsumerJoined("s", "a", 1))
    holds.handle(ConnectionLost(1))
    holds.handle(ConsumerJoined("s", "a", 2))
    assert holds.handle(ConnectionLost(1)) == ()
    assert holds.handle(ConsumerGone(1)) == ()
    assert holds.named("s", "a") == NameHold("s", "a", 2, PLAIN_REQUEST, True)
    assert holds.of(1) is None


def test_a_connection_is_lost_once() -> None:
    holds = NameHolds()
    holds.handle(ConsumerJoined("s", "a", 1))
    assert holds.handle(ConnectionLost(1)) == (StartTimer(1),)
    assert holds.handle(ConnectionLost(1)) == ()


def test_restored_members_are_lost_from_the_start() -> None:
    holds = NameHolds()
    assert holds.handle(ConsumerJoined("s", "a", 1, connected=False)) == (StartTimer(1),)
    assert holds.handle(ConsumerGone(1)) == (CancelTimer(1),)
    assert holds.all("s") == ()


def test_a_consumer_that_leaves_while_connected_has_no_timer_to_cancel() -> None:
    holds = NameHolds()
    holds.handle(ConsumerJoined("s", "a", 1))
    holds.handle(ConsumerJoined("s", "b", 2))
    assert holds.handle(ConsumerGone(1)) == ()
    assert [hold.name for hold in holds.all("s")] == ["b"]
