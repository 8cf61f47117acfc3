"""The figures of the benchmark `hot-key`: a message that never arrives is not left out of them."""

from __future__ import annotations

import pytest

from benchmarks.client.hot_key_traffic import CANDIDATES, HOT, PROBE, RATE, Owners, Plan, Traffic

PLAN = Plan(1.0, 2.0, 2.0, 1.0)
BEGAN_S = 100.0
WAIT_S = 0.005


def traffic_received_until(end: int) -> Traffic:
    """A run whose consumers received all messages before `end` after the same wait, and no later one."""
    traffic = Traffic(PLAN, CANDIDATES, BEGAN_S)
    for number in range(end):
        traffic.note(traffic.value(number), traffic.due_s(number) + WAIT_S)
    return traffic


def test_an_undisturbed_run_has_the_same_figures_in_both_phases() -> None:
    traffic = traffic_received_until(PLAN.messages)
    for phase in (traffic.calm(), traffic.stalled()):
        assert phase.rate == pytest.approx(RATE / 2, rel=0.02)
        assert phase.p99_ms == pytest.approx(WAIT_S * 1e3)
    assert traffic.complete
    assert not traffic.disorder


def test_messages_that_do_not_arrive_in_the_stall_count_with_their_wait_until_its_end() -> None:
    middle = PLAN.stall_from + round(PLAN.stall_s * RATE / 2)
    traffic = traffic_received_until(middle)
    assert traffic.stalled().rate == pytest.approx(RATE / 4, rel=0.02)
    assert traffic.stalled().p99_ms == pytest.approx(1e3 * PLAN.stall_s / 2, rel=0.05)
    assert traffic.missing == PLAN.messages - middle
    for number in range(middle, PLAN.messages):
        traffic.note(traffic.value(number), traffic.due_s(PLAN.messages) + 1)
    assert traffic.complete
    assert traffic.stalled().rate == pytest.approx(RATE / 4, rel=0.02), "too late for the phase"


def test_a_message_after_a_later_one_of_its_key_is_out_of_order() -> None:
    traffic = Traffic(PLAN, CANDIDATES, BEGAN_S)
    for number in (0, 1, 4, 2, 3, 4):
        traffic.note(traffic.value(number), BEGAN_S + 1)
    assert traffic.disorder == 1
    traffic.note(PROBE, BEGAN_S)
    assert traffic.missing == PLAN.messages - 5


def test_every_second_message_has_the_hot_key_and_the_others_share_the_rest() -> None:
    traffic = Traffic(PLAN, ["a", "b"], BEGAN_S)
    assert [traffic.key(number) for number in range(6)] == [HOT, "a", HOT, "b", HOT, "a"]


def test_keys_of_the_stuck_consumer_are_left_out() -> None:
    owners = Owners()
    owners.of = {key: number % 3 for number, key in enumerate((HOT, *CANDIDATES))}
    assert owners.complete
    assert {owners.of[key] for key in owners.others()} == {1, 2}
