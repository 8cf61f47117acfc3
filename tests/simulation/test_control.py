"""Control processes over a simulated Pulsar: honest runs, and broken builds that a judge notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from anabranch.client.bulk import place_reader
from anabranch.client.consume.segments import segment_consumer
from anabranch.client.net import place_search
from anabranch.client.produce import segment_producer
from anabranch.control import sweeping
from anabranch.control.lease import SessionLease
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.control.quiet_periods import QuietPeriods
from anabranch.control.topic_marks import READY_PROPERTY
from anabranch.controller.decide.consistency import LogState
from anabranch.controller.topic.leadership import Leadership
from anabranch.metadata.records import InitialPosition
from anabranch.model.drains import ALL, Ranges
from anabranch.model.names import Place, TopicName
from simulation.cluster import control_cluster, session
from simulation.cluster.admin import SimAdmin
from simulation.cluster.calls import AdminTrouble
from simulation.run import CONTROL, run_one
from simulation.runs import control_run
from tests.harness.mutants import assert_caught, favour_control

LATE = (AdminTrouble(refuse=0.02, late=0.1, late_creation=0.5),)
"""Many admin calls arrive late."""

CALM: dict[str, Any] = dict.fromkeys(("churn", "kills", "lapses", "late_subscriptions", "pauses", "seeks"), 0)
"""Values of a run without most faults."""


async def do_nothing(*arguments: object, **options: object) -> None:
    """Stand in for a call that is left out."""


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_has_no_findings(seed: int) -> None:
    assert run_one(seed, CONTROL).found == []


def test_one_seed_gives_one_trace() -> None:
    assert run_one(17, CONTROL).digest == run_one(17, CONTROL).digest


def test_a_producer_that_does_not_read_the_sealed_topic_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: object) -> list[object]:
        return []

    monkeypatch.setattr(segment_producer, "stored_since", nothing)
    assert_caught("is stored at", step=CONTROL, first=189)


def test_children_that_open_too_early_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drained(self: PulsarSegments, place: Place, subscription: str) -> Ranges:
        return ALL

    monkeypatch.setattr(PulsarSegments, "drained", drained)
    assert_caught("came before", step=CONTROL, first=4)


def test_children_without_subscriptions_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PulsarSegments.create

    async def create(
        self: PulsarSegments, place: Place, subscriptions: Mapping[str, InitialPosition], term: int
    ) -> LogState:
        return await honest(self, place, {}, term)

    monkeypatch.setattr(PulsarSegments, "create", create)
    assert_caught("lacks the subscription", step=CONTROL)


def test_a_terminate_that_leaves_appends_pending_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_run, "STUCK_CHANCES", (0.5,))
    monkeypatch.setattr(SimAdmin, "unload", do_nothing)
    assert_caught("not healed", step=CONTROL, first=4)


def test_segments_that_do_not_recognise_repetitions_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    favour_control(monkeypatch, link_faults=10)
    monkeypatch.setattr(SimAdmin, "recognise_repetitions", do_nothing)
    assert_caught("is stored at", step=CONTROL, first=3)


def test_strays_of_late_calls_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sweep(self: sweeping.Sweeper) -> list[object]:
        return []

    favour_control(monkeypatch, churn=4)
    monkeypatch.setattr(control_run, "ADMIN_TROUBLES", LATE)
    monkeypatch.setattr(sweeping.Sweeper, "sweep", sweep)
    assert_caught("is a stray at Pulsar", step=CONTROL)


def test_a_sweeper_that_deletes_what_an_intent_names_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = sweeping.strays

    def strays(found: Any, name: Any, record: Any, lineage: Any) -> Any:
        without = None if record is None else msgspec.structs.replace(record, intent=None)
        return honest(found, name, without, lineage)

    favour_control(monkeypatch, operations=8)
    monkeypatch.setattr(control_cluster, "SWEEP_S", (0.01, 0.1))
    monkeypatch.setattr(sweeping, "strays", strays)
    assert_caught("removed before it was read", "no topic at Pulsar", "lost", step=CONTROL, first=3)


def test_a_client_that_takes_an_empty_last_ledger_for_an_empty_topic_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place_search, "last_message", do_nothing)
    monkeypatch.setattr(place_reader, "last_message", do_nothing)
    monkeypatch.setattr(segment_consumer, "last_message", do_nothing)
    assert_caught("lost", "is stored at", step=CONTROL, first=242)


def test_a_sweeper_that_trusts_names_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "marks_of", lambda segment, installation: {})
    assert_caught("of another control plane was deleted", step=CONTROL)


def test_a_subscription_that_a_late_deletion_hits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a call without an answer, the next call about the topic does not wait."""

    @asynccontextmanager
    async def call(self: QuietPeriods, topic: TopicName) -> AsyncIterator[None]:
        yield

    favour_control(monkeypatch, **CALM, operations=1)
    monkeypatch.setattr(control_run, "REUSES", (5,))
    monkeypatch.setattr(control_run, "ADMIN_TROUBLES", (AdminTrouble(late_deletion=0.4),))
    monkeypatch.setattr(QuietPeriods, "call", call)
    assert_caught("lacks the subscription again", step=CONTROL, first=3)


def test_a_subscription_that_was_left_half_made_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulsar makes a subscription at the end, and fails before it has moved it to the first message."""
    favour_control(monkeypatch, **CALM, operations=1)
    monkeypatch.setattr(control_run, "REUSES", (3,))
    monkeypatch.setattr(control_run, "INTERRUPT_CHANCES", (0.5,))
    monkeypatch.setattr(SimAdmin, "seek_to_entry", do_nothing)
    assert_caught("the subscription again misses messages", step=CONTROL)


def test_a_leader_that_does_not_wait_for_the_calls_of_a_dead_one_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    favour_control(monkeypatch, **CALM, operations=1, workers=2, lease_s=1.0)
    monkeypatch.setattr(control_run, "REUSES", (5,))
    monkeypatch.setattr(control_run, "ADMIN_TROUBLES", (AdminTrouble(late_deletion=0.3, fatal=0.9),))
    monkeypatch.setattr(QuietPeriods, "begin", lambda self: None)
    assert_caught("lacks the subscription again", step=CONTROL, first=1)


def test_a_former_leader_that_goes_on_calling_pulsar_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session is over, and Pulsar knows no term: only the lease stops its calls."""
    favour_control(monkeypatch, **CALM, operations=1, workers=2, lease_s=1.0)
    monkeypatch.setattr(control_run, "REUSES", (2,))
    monkeypatch.setattr(control_run, "STEPS", ("subscription.delete.recorded",))
    monkeypatch.setattr(control_run, "STEP_PAUSES", (1,))
    monkeypatch.setattr(control_run, "PAUSES_S", (9.0, 12.0))
    monkeypatch.setattr(SessionLease, "check", lambda self: None)
    assert_caught("lacks the subscription again", step=CONTROL, first=17)


def test_a_former_leader_that_goes_on_writing_records_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writes pass in the session that the store began by itself: only the term stops them."""
    calm = CALM | {"pauses": 1}
    favour_control(
        monkeypatch, **calm, operations=6, askers=3, busy_s=15.0, workers=2, lease_s=1.0, messages=30
    )
    monkeypatch.setattr(control_run, "REUSES", (0,))
    monkeypatch.setattr(control_run, "STEP_PAUSES", (0,))
    monkeypatch.setattr(control_run, "PAUSES_S", (9.0, 12.0))
    monkeypatch.setattr(control_run, "ADMIN_TROUBLES", (AdminTrouble(late=0.05),))
    monkeypatch.setattr(session, "RECONNECT_S", (4.0, 6.0))
    monkeypatch.setattr(Leadership, "check_term", lambda self, term: None)
    assert_caught("without a cause", "whose log is open", step=CONTROL, first=52)


def test_a_half_made_topic_that_is_taken_for_a_whole_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def properties(self: SimAdmin, topic: object) -> dict[str, str]:
        return {READY_PROPERTY: "true"}

    monkeypatch.setattr(SimAdmin, "properties", properties)
    assert_caught("has no policy", step=CONTROL, first=7)
