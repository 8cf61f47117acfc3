"""The life of a segment's producer, without an event loop: the next state and the effects of each event."""

from __future__ import annotations

import pytest

from anabranch.client.decide.producing.producer_life import (
    TRANSITIONS,
    ProducerEffect,
    ProducerEvent,
    ProducerLife,
    ProducerState,
    registration_failed,
)
from anabranch.errors import (
    AuthenticationError,
    AuthorizationError,
    CredentialsUnavailableError,
    ProducerBusyError,
    ServiceNotReadyError,
    TopicNotFoundError,
    TopicTerminatedError,
)

S, E, F = ProducerState, ProducerEvent, ProducerEffect
REGISTERED = {S.ATTACHED, S.LAST_RECEIPTS}
ENDS = {S.LEFT, S.FAILED, S.CLOSED}


def life_after(*events: ProducerEvent) -> tuple[ProducerLife, list[ProducerEffect]]:
    """A life, and the effects of its last event."""
    life = ProducerLife()
    effects: tuple[ProducerEffect, ...] = ()
    for event in events:
        effects = life.handle(event)
    return life, list(effects)


def test_an_entry_refused_again_and_again_is_sent_again_after_growing_pauses() -> None:
    life, effects = life_after(E.ACCEPTED, E.SEND_REFUSED)
    assert (life.state, effects, life.failures) == (S.ATTACHING, [F.RELEASE, F.ATTACH], 1)
    life, _ = life_after(E.ACCEPTED, E.SEND_REFUSED, E.ACCEPTED, E.SEND_REFUSED)
    assert life.failures == 2


def test_a_lost_connection_is_replaced_at_once() -> None:
    life, effects = life_after(E.ACCEPTED, E.DETACHED)
    assert life.state is S.ATTACHING
    assert effects == [F.RELEASE, F.ATTACH]
    assert life.failures == 0


def test_failures_count_until_the_next_success() -> None:
    life, _ = life_after(E.UNREACHABLE, E.UNREACHABLE)
    assert life.failures == 2
    life.handle(E.ACCEPTED)
    assert life.failures == 0


def test_a_seal_that_the_layout_confirms_ends_the_producer() -> None:
    life, effects = life_after(E.ACCEPTED, E.SEALED_BY_BROKER, E.STORED_KNOWN)
    assert effects == [F.REPORT_SETTLED, F.AWAIT_LAYOUT]
    assert life.settled
    assert life.handle(E.SEALED_BY_LAYOUT) == (F.STOP, F.REPORT_LEFT)
    assert life.state is S.LEFT
    assert life.settled


def test_a_seal_with_every_receipt_asks_nothing_and_waits_for_the_layout() -> None:
    life, effects = life_after(E.ACCEPTED, E.SEALED_AND_ANSWERED)
    assert effects == [F.RELEASE, F.REPORT_SETTLED, F.AWAIT_LAYOUT]
    assert life.settled
    life, effects = life_after(E.ACCEPTED, E.SEALED_BY_LAYOUT, E.SEALED_AND_ANSWERED)
    assert (life.state, effects) == (S.LEFT, [F.RELEASE, F.REPORT_LEFT, F.REPORT_SETTLED])


def test_a_seal_that_no_layout_confirms_is_forgotten() -> None:
    life, effects = life_after(E.SEALED_BY_BROKER, E.STORED_KNOWN, E.LAYOUT_OVERDUE)
    assert life.state is S.ATTACHING
    assert effects == [F.ATTACH]
    assert not life.settled


def test_a_layout_ahead_of_the_receipts_waits_for_them() -> None:
    life, effects = life_after(E.ACCEPTED, E.SEALED_BY_LAYOUT)
    assert effects == [F.AWAIT_RECEIPTS]
    assert not life.settled
    assert life.handle(E.RECEIPTS_ENDED) == (F.RELEASE, F.ASK_STORED)
    assert life.handle(E.STORED_KNOWN) == (F.REPORT_LEFT, F.REPORT_SETTLED)


def test_a_layout_that_comes_while_the_producer_settles_is_remembered() -> None:
    life, _ = life_after(E.ACCEPTED, E.SEALED_BY_BROKER, E.SEALED_BY_LAYOUT, E.STORED_KNOWN)
    assert life.state is S.LEFT


def test_late_events_change_nothing() -> None:
    life, effects = life_after(E.ACCEPTED, E.SEALED_BY_LAYOUT, E.DETACHED, E.RECEIPTS_ENDED)
    assert life.state is S.LEAVING
    assert effects == []


@pytest.mark.parametrize("state", S)
def test_every_state_can_be_closed_and_every_state_but_an_end_can_be_left(state: ProducerState) -> None:
    events = {event for known, event in TRANSITIONS if known is state}
    assert E.CLOSED in events
    assert (events == {E.CLOSED}) == (state in ENDS)


def test_a_registration_is_given_back_wherever_its_state_is_left() -> None:
    for (state, event), (following, effects) in TRANSITIONS.items():
        leaves = state in REGISTERED and following not in REGISTERED and event is not E.CLOSED
        assert (F.RELEASE in effects) == leaves, (state, event)


@pytest.mark.parametrize(
    ("error", "may_be_held", "event"),
    [
        (TopicTerminatedError("sealed"), False, E.SEALED_BY_BROKER),
        (ServiceNotReadyError("not now"), False, E.UNREACHABLE),
        (TimeoutError(), False, E.UNREACHABLE),
        (TopicNotFoundError("deleted"), False, E.UNREACHABLE),
        (AuthorizationError("no"), True, E.REFUSED),
        (ProducerBusyError("another has the name"), False, E.REFUSED),
        (ProducerBusyError("the old connection has it"), True, E.UNREACHABLE),
    ],
)
def test_the_error_of_a_registration_decides_the_event(
    error: Exception, may_be_held: bool, event: ProducerEvent
) -> None:
    found = registration_failed(error, may_be_held=may_be_held, role_ends=True)
    assert found is event


@pytest.mark.parametrize("error", [AuthenticationError("expired"), CredentialsUnavailableError("no issuer")])
def test_credentials_that_may_be_accepted_later_are_shown_again(error: Exception) -> None:
    assert registration_failed(error, may_be_held=True, role_ends=False) is E.UNREACHABLE
