"""The topics of pipelines: which of them a pipeline may read and write together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark import pipelines
from anabranch.spark.pipelines.places import TopicPlace, refuse_same

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
