"""The owner of a store, and its life at one broker, step by step, without an event loop."""

from __future__ import annotations

from itertools import combinations

import pytest

from anabranch.broker.cluster.decide.store_ownership import (
    OUTCOMES,
    StoreAim,
    StoreState,
    StoreStep,
    aim_for,
    desired_owner,
    holder_name,
    lease_is_over,
    next_step,
)
from anabranch.metadata.broker_record import BrokerRecord

OPEN_STATES = [state for state in StoreState if state not in (StoreState.UNOWNED, StoreState.CLOSED)]


def walk(state: StoreState, aim: StoreAim, *, failing: StoreStep | None = None) -> list[StoreStep]:
    """Return the steps until the store reaches its aim, or until a failing step leaves it as it was."""
    steps: list[StoreStep] = []
    while (step := next_step(state, aim)) is not None:
        steps.append(step)
        before, state = state, OUTCOMES[step].failed if step is failing else OUTCOMES[step].done
        if state is before:
            break
        assert len(steps) < 10, steps
    return steps


def test_a_store_is_published_before_its_topics_are_led() -> None:
    assert walk(StoreState.UNOWNED, StoreAim.OWN) == [StoreStep.OPEN, StoreStep.PUBLISH, StoreStep.ANNOUNCE]


def test_a_store_is_served_until_its_checkpoint_is_written() -> None:
    assert walk(StoreState.SERVED, StoreAim.GIVE_UP) == [
        StoreStep.CHECKPOINT,
        StoreStep.LEAVE,
        StoreStep.CLOSE,
        StoreStep.WITHDRAW,
    ]


def test_a_store_that_is_wanted_again_after_its_checkpoint_is_not_announced_again() -> None:
    assert walk(StoreState.CHECKPOINTED, StoreAim.OWN) == [StoreStep.KEEP]


def test_a_broker_that_stops_writes_no_checkpoint_first() -> None:
    assert walk(StoreState.SERVED, StoreAim.STOP) == [StoreStep.LEAVE, StoreStep.CLOSE, StoreStep.WITHDRAW]


@pytest.mark.parametrize("failing", [StoreStep.PUBLISH, StoreStep.ANNOUNCE])
def test_a_store_that_cannot_be_settled_goes_to_the_broker_that_should_own_it(failing: StoreStep) -> None:
    state = OUTCOMES[failing].failed
    assert next_step(state, StoreAim.OWN) is StoreStep.PUBLISH
    assert next_step(state, StoreAim.GIVE_UP) is StoreStep.LEAVE


@pytest.mark.parametrize("state", OPEN_STATES)
@pytest.mark.parametrize("failing", [StoreStep.LEAVE, StoreStep.CLOSE])
def test_every_open_store_is_closed_and_withdrawn_at_a_stop_although_a_step_fails(
    state: StoreState, failing: StoreStep
) -> None:
    assert walk(state, StoreAim.STOP, failing=failing)[-2:] == [StoreStep.CLOSE, StoreStep.WITHDRAW]


def test_the_store_of_an_awaited_broker_is_left_to_it() -> None:
    assert aim_for(1, 0, {0}) is StoreAim.OWN
    assert aim_for(1, 0, {0}, awaited={1}) is StoreAim.GIVE_UP
    assert aim_for(1, 0, {0, 1}) is StoreAim.GIVE_UP
    assert aim_for(0, 0, set()) is StoreAim.OWN, "a broker whose lease lapsed keeps its own store"
    assert aim_for(0, 0, {0}, stopping=True) is StoreAim.STOP


def test_a_store_belongs_to_the_broker_of_its_number_else_to_one_that_all_agree_on() -> None:
    assert desired_owner(3, {1, 2, 3}) == 3
    assert desired_owner(3, set()) is None
    for store in range(20):
        for living in combinations(range(5), 3):
            owner = desired_owner(store, living)
            assert owner in living
            for gone in set(living) - {owner}:
                assert desired_owner(store, set(living) - {gone}) == owner, (
                    "the death of another broker moves no store"
                )
    assert len({desired_owner(store, {0, 1, 2}) for store in range(3, 20)}) == 3, "the load is shared"


def test_only_brokers_are_judged_and_only_by_the_start_that_took_the_lock() -> None:
    living = {1: BrokerRecord(id=1, url="pulsar://b1", http_url="", generation=7)}
    assert not lease_is_over("broker 1/7", living)
    assert lease_is_over("broker 1/6", living)
    assert lease_is_over("broker 2/7", living)
    assert not lease_is_over("", living)
    assert not lease_is_over("somebody", living)
    assert holder_name(living[1]) == "broker 1/7"
