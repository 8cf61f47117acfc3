"""The topics of pipelines: which of them a pipeline may read and write, and with which options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark import pipelines
from anabranch.spark.pipelines.topic_places import TopicPlace, refuse_same

LATEST = TopicPlace("latest", "pulsar://one:6650")
ORDERS = TopicPlace("orders", "pulsar://one:6650")
SAME = TopicPlace("topic://public/default/orders", "pulsar://one:6650", {"client.operationTimeout": "1s"})


@pytest.mark.parametrize(
    "copy",
    [
        lambda: pipelines.mirror(None, ORDERS, SAME),
        lambda: pipelines.compact_to_topic(None, ORDERS, SAME),
        lambda: pipelines.replay_to_topic(None, "/lake", ORDERS, SAME),
    ],
)
def test_a_topic_is_not_copied_into_itself(copy: Callable[[], Any]) -> None:
    with pytest.raises(InvalidConfigurationError, match="into itself; name another topic"):
        copy()


def test_a_topic_of_the_same_name_on_another_broker_is_another_topic() -> None:
    refuse_same(ORDERS, TopicPlace("orders", "pulsar://two:6650"), "mirrored")


def given(option: str) -> TopicPlace:
    return TopicPlace("orders", "pulsar://one:6650", {option: "other"})


@pytest.mark.parametrize(
    ("run", "option"),
    [
        (lambda: pipelines.archive(None, given("SUBSCRIBE"), "/lake"), "subscribe"),
        (lambda: pipelines.archive(None, given("startingoffsets"), "/lake"), "startingOffsets"),
        (lambda: pipelines.compact_to_table(None, given("valueSchema"), "/lake"), "valueSchema"),
        (lambda: pipelines.compact_to_topic(None, given("topic"), LATEST), "topic"),
        (lambda: pipelines.compact_to_topic(None, LATEST, given("delivery")), "delivery"),
        (lambda: pipelines.replay_to_topic(None, "/lake", None, given("sinkId")), "sinkId"),
        (lambda: pipelines.mirror(None, given("service.url"), LATEST), "service.url"),
        (lambda: pipelines.mirror(None, LATEST, given("checkpointLocation")), "checkpointLocation"),
        (lambda: pipelines.load(None, "/a.csv", given("batchId")), "batchId"),
        (lambda: pipelines.verify(None, given("startingTimestamp")), "startingTimestamp"),
        (lambda: pipelines.skew(None, given("subscribePattern")), "subscribePattern"),
    ],
)
def test_an_option_that_a_pipeline_decides_is_refused(run: Callable[[], Any], option: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=rf"sets the option {option} itself"):
        run()
