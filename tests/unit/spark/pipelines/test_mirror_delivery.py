"""The delivery of a mirror: exactly once, unless its target cannot take that."""

from __future__ import annotations

from anabranch.spark.pipelines.mirroring import written_as
from anabranch.spark.pipelines.topic_places import TopicPlace


def test_a_copy_is_written_exactly_once() -> None:
    assert written_as(TopicPlace("copy"))["delivery"] == "exactly-once"


def test_an_option_of_the_target_chooses_another_delivery() -> None:
    target = TopicPlace("copy", "pulsar://control:6650", {"delivery": "at-least-once"})
    assert written_as(target)["delivery"] == "at-least-once"
