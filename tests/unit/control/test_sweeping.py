"""Strays at Pulsar: topics of segments that no record names."""

from __future__ import annotations

import pytest

from anabranch.control.sweeping import Sweeper
from anabranch.control.topic_marks import marks_of
from anabranch.model.names import TopicName
from anabranch.model.pulsar_names import pulsar_topic
from simulation.cluster.pulsar import SimTopic
from tests.harness.control_plane import ControlProcesses
from tests.harness.segments import NAME

ORDERS = TopicName.parse(NAME)


def sweeper(control: ControlProcesses, number: int = 0) -> Sweeper:
    broker = control[number]
    return Sweeper(control.pulsar, broker.records, broker.stores.is_open)


def made(segment: TopicName, installation: str = "") -> SimTopic:
    """A topic as the control plane makes it."""
    return SimTopic(marks_of(segment, installation))


def segment(text: str) -> TopicName:
    return TopicName.parse(f"segment://public/default/orders/{text}")


async def split_orders(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    await (await control.controller()).split(0)


async def test_segments_of_the_layout_stay(control: ControlProcesses) -> None:
    await split_orders(control)
    assert await sweeper(control).sweep() == []
    assert len(control.pulsar.found) == 3


async def test_a_topic_that_a_late_call_made_again_is_deleted(control: ControlProcesses) -> None:
    await split_orders(control)
    late = segment("4000-ffff-1")
    control.pulsar.found[pulsar_topic(late)] = made(late)
    assert await sweeper(control).sweep() == [late]
    assert pulsar_topic(late) not in control.pulsar.found


async def test_strays_of_a_deleted_topic_are_deleted(control: ControlProcesses) -> None:
    await split_orders(control)
    await control[0].controllers.delete_topic(ORDERS)
    assert control.pulsar.found == {}
    late = segment("0000-ffff-0")
    control.pulsar.found[pulsar_topic(late)] = made(late)
    assert await sweeper(control).sweep() == [late]


async def test_a_segment_that_no_record_has_reserved_yet_stays(control: ControlProcesses) -> None:
    await split_orders(control)
    control.pulsar.found[pulsar_topic(segment("0000-ffff-7"))] = made(segment("0000-ffff-7"))
    assert await sweeper(control).sweep() == []


async def test_other_topics_of_the_namespace_stay(control: ControlProcesses) -> None:
    await split_orders(control)
    control.pulsar.found[TopicName.parse("persistent://public/default/other")] = SimTopic()
    assert await sweeper(control).sweep() == []


@pytest.mark.parametrize("control", [2], indirect=True)
async def test_only_the_holder_of_the_home_sweeps(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    late = segment("4000-ffff-0")
    control.pulsar.found[pulsar_topic(late)] = made(late)
    home = (await control[0].records.load(ORDERS)).store
    assert await sweeper(control, 1 - home).sweep() == []
    assert await sweeper(control, home).sweep() == [late]


async def test_topics_of_users_and_of_other_control_planes_stay(control: ControlProcesses) -> None:
    await split_orders(control)
    control.pulsar.found[pulsar_topic(segment("4000-ffff-1"))] = SimTopic()
    control.pulsar.found[pulsar_topic(segment("4000-ffff-2"))] = made(segment("4000-ffff-2"), "other")
    assert await sweeper(control).sweep() == []
    assert len(control.pulsar.found) == 5


async def test_a_stray_that_cannot_be_deleted_holds_up_no_other(control: ControlProcesses) -> None:
    await split_orders(control)
    busy, late = segment("4000-ffff-0"), segment("4000-ffff-1")
    for one in (busy, late):
        control.pulsar.found[pulsar_topic(one)] = made(one)
    control.pulsar.found[pulsar_topic(busy)].clients = 1
    assert await sweeper(control).sweep() == [late]
    control.pulsar.found[pulsar_topic(busy)].clients = 0
    assert await sweeper(control).sweep() == [busy]
