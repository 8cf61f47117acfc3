"""The record of a led topic, and the settings of its controller."""

from __future__ import annotations

from anabranch.config.broker import BrokerConfig
from anabranch.controller.topic.leadership import ControllerSettings, Leadership
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import HashRange
from tests.fakes.segments import StoredSegment
from tests.harness.control import TOPIC, ControlPlane


async def test_a_segment_is_found_by_its_name_also_one_that_was_a_classic_topic(plane: ControlPlane) -> None:
    classic = [TopicName.parse(f"persistent://public/default/old-partition-{n}") for n in (0, 1)]
    await plane.boot()
    for name in classic:
        plane.disk.stored[name] = StoredSegment()
    await plane.migrate([Place(name, 0) for name in classic])
    lead = await plane.call(Leadership.take_over(plane.context, TOPIC))
    for segment in lead.layout.segments.values():
        assert lead.find(lead.segment_name(segment)) is segment
    assert lead.find(TopicName.parse("persistent://public/default/old-partition-2")) is None
    assert lead.find(TOPIC.segment_name(HashRange(0, 1), 2)) is None, "another range"
    assert lead.find(TOPIC.segment_name(HashRange(0, 1), 99)) is None


def test_the_defaults_of_a_broker_are_the_defaults_of_its_controllers() -> None:
    assert ControllerSettings.from_config(BrokerConfig()) == ControllerSettings()


def test_a_negative_retention_keeps_sealed_segments_for_ever() -> None:
    assert ControllerSettings.from_config(BrokerConfig(segment_retention_s=-1)).retention_s is None
    assert ControllerSettings.from_config(BrokerConfig(segment_retention_s=0)).retention_s == 0
