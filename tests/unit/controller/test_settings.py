"""What a broker's configuration says about controllers."""

from __future__ import annotations

from anabranch.config import BrokerConfig
from anabranch.controller.topic.leadership import ControllerSettings


def test_the_defaults_of_a_broker_are_the_defaults_of_its_controllers() -> None:
    assert ControllerSettings.from_config(BrokerConfig()) == ControllerSettings()


def test_a_negative_retention_keeps_sealed_segments_for_ever() -> None:
    assert ControllerSettings.from_config(BrokerConfig(segment_retention_s=-1)).retention_s is None
    assert ControllerSettings.from_config(BrokerConfig(segment_retention_s=0)).retention_s == 0
