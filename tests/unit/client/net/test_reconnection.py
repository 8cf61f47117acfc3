"""The life of an attachment: which phase follows which event."""

from __future__ import annotations

from random import Random

import pytest

from anabranch.client.decide.connecting.reconnection import ReconnectEvent as Event
from anabranch.client.decide.connecting.reconnection import Reconnection, ReconnectPhase
from anabranch.client.net.connection_pool import pause_s
from anabranch.errors import AuthenticationError, ConnectError


def after(*events: Event) -> Reconnection:
    life = Reconnection()
    for event in events:
        life.handle(event)
    return life


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ((), ReconnectPhase.ATTACHING),
        ((Event.ATTACHED,), ReconnectPhase.ATTACHED),
        ((Event.FAILED,), ReconnectPhase.WAITING),
        ((Event.FAILED, Event.RETRIED), ReconnectPhase.ATTACHING),
        ((Event.ATTACHED, Event.LOST), ReconnectPhase.ATTACHING),
        ((Event.ATTACHED, Event.REFUSED), ReconnectPhase.WAITING),
    ],
)
def test_each_event_leads_to_its_phase(events: tuple[Event, ...], phase: ReconnectPhase) -> None:
    assert after(*events).phase is phase


def test_a_loss_during_an_attempt_makes_another_attempt_follow() -> None:
    event = Event.LOST
    assert after(event, event).phase is ReconnectPhase.OUTDATED
    assert after(event, Event.ATTACHED).phase is ReconnectPhase.ATTACHING
    assert after(event, Event.FAILED).phase is ReconnectPhase.WAITING, "the failure counts"
    assert after(event, Event.BEGUN).phase is ReconnectPhase.ATTACHING
    assert after(event, Event.RETRIED).phase is ReconnectPhase.OUTDATED, "the attempt was not repeated"


def test_an_event_that_does_not_concern_a_phase_changes_nothing() -> None:
    assert not after(Event.FAILED).handle(Event.LOST)
    assert not after(Event.ATTACHED).handle(Event.RETRIED)
    assert not after().handle(Event.REFUSED)


def test_nothing_follows_the_end() -> None:
    for events in ((), (Event.ATTACHED,), (Event.FAILED,), (Event.LOST,)):
        life = after(*events)
        assert life.handle(Event.ENDED)
        assert life.ended
        assert not any(life.handle(event) for event in Event)


def test_pauses_depend_on_the_failures_in_a_row() -> None:
    life = after(Event.FAILED, Event.RETRIED, Event.FAILED)
    assert life.failures == 2
    life.handle(Event.RETRIED)
    life.handle(Event.ATTACHED)
    assert life.failures == 0


def test_refusals_count_until_the_broker_accepts_a_request() -> None:
    life = after(Event.ATTACHED, Event.REFUSED, Event.RETRIED, Event.ATTACHED, Event.REFUSED)
    assert life.failures == 2
    life.refusals = 0
    life.handle(Event.RETRIED)
    life.handle(Event.ATTACHED)
    life.handle(Event.REFUSED)
    assert life.failures == 1


def test_a_refused_role_pauses_for_longer_than_a_lost_broker() -> None:
    rng = Random(1)
    refused = [pause_s(AuthenticationError("no"), 20, rng) for _ in range(20)]
    lost = [pause_s(ConnectError("gone"), 20, rng) for _ in range(20)]
    assert max(lost) < 2 < min(refused)
