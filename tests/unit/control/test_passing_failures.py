"""Pulsar fails one call of a change for a moment: the leader finishes the change, and answers its caller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from anabranch.errors import (
    AnabranchError,
    ConflictError,
    InvalidConfigurationError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from anabranch.model.names import TopicName
from tests.harness.admin import ORDERS, Admin
from tests.harness.control_plane import ControlProcesses
from tests.harness.segments import NAME

TOPIC = TopicName.parse(NAME)
WHOLE = TopicName.parse("persistent://public/default/orders.segment-0000-ffff-0")
LOWER = TopicName.parse("persistent://public/default/orders.segment-0000-7fff-1")
CALLS_OF_A_SPLIT = 12


@dataclass
class FailingCall:
    """Fails one call to Pulsar, counted from 1 on."""

    number: int
    error: AnabranchError
    calls: int = 0

    async def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.number:
            raise self.error


@pytest.mark.parametrize("number", range(1, CALLS_OF_A_SPLIT + 1))
async def test_a_split_succeeds_although_one_call_fails_for_a_moment(
    control: ControlProcesses, number: int
) -> None:
    await control[0].controllers.create_topic(TOPIC)
    failing = control.pulsar.before = FailingCall(number, ServiceNotReadyError("the topic is moving"))
    answer = await Admin(control).ask("POST", f"{ORDERS}/split/0")
    assert answer.status == 204
    assert failing.calls > CALLS_OF_A_SPLIT
    assert len((await control.controller()).layout.active) == 2


@pytest.mark.parametrize("error", [ConflictError("race"), InvalidConfigurationError("no position")])
@pytest.mark.parametrize("number", range(1, CALLS_OF_A_SPLIT + 1))
async def test_a_recorded_split_is_finished_although_pulsar_seems_to_refuse_a_step(
    control: ControlProcesses, number: int, error: AnabranchError
) -> None:
    """Producers wait for the layout once the parent is sealed."""
    await control[0].controllers.create_topic(TOPIC)
    leader = await control.controller()
    control.pulsar.before = FailingCall(number, error)
    with pytest.raises(type(error)):
        await leader.split(0)
    await asyncio.sleep(1.0)
    assert len(leader.layout.active) == 2
    assert control.pulsar.found[WHOLE].terminated


async def test_a_new_topic_that_a_broker_does_not_know_yet_is_asked_for_again(
    control: ControlProcesses,
) -> None:
    await control[0].controllers.create_topic(TOPIC)
    leader = await control.controller()

    async def lose_the_new_topic() -> None:
        if LOWER in control.pulsar.found:
            control.pulsar.before = FailingCall(0, ServiceNotReadyError("never"))
            raise TopicNotFoundError("unknown here")

    control.pulsar.before = lose_the_new_topic
    assert (await Admin(control).ask("POST", f"{ORDERS}/split/0")).status == 204
    assert (await control.controller()) is leader, "the leader does not take its topic for deleted"


async def test_a_subscription_whose_creation_failed_half_way_misses_no_message(
    control: ControlProcesses,
) -> None:
    """Pulsar makes a subscription at the end, and moves it to the first message then."""
    await control[0].controllers.create_topic(TOPIC, 2)
    for topic in control.pulsar.found.values():
        topic.times_ms += [1, 2, 3]
    control.pulsar.interrupted_creations = 1
    answer = await Admin(control).ask("PUT", f"{ORDERS}/subscriptions/audit")
    assert answer.status == 204
    assert [topic.cursors for topic in control.pulsar.found.values()] == [{"audit": 0}] * 2
