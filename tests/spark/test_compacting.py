"""`compact` into a topic: targets that are new, and targets that have messages of earlier compactions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.spark import pipelines
from anabranch.spark.service import close_sessions
from simulation.harness.process import BrokerProcess
from tests.harness.stored_messages import messages_by_key

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("compacting") / "data"
    with BrokerProcess(data, {"auto_scale.enabled": "false"}) as process:
        yield process
        close_sessions()


def send(broker: BrokerProcess, topic: str, values: Mapping[str, bytes | None]) -> None:
    with anabranch.Client(broker.url) as client:
        producer: anabranch.Producer[bytes] = client.create_producer(topic)
        for key, value in values.items():
            producer.enqueue(value, key=key)
        producer.close()


def received(broker: BrokerProcess, topic: str) -> dict[str, list[bytes | None]]:
    with anabranch.Client(broker.url) as client:
        found = messages_by_key(client, topic)
    return {key: [message.value for message in messages] for key, messages in found.items()}


def compact(spark: Any, broker: BrokerProcess, name: str, state: Path) -> None:
    places = [pipelines.TopicPlace(f"{name}{end}", broker.url, options) for end, options in ENDS.items()]
    pipelines.compact_to_topic(spark, *places, pipelines.CompactOptions(state=str(state)), pipelines.silent)


ENDS: dict[str, dict[str, object]] = {"": {"badEntries": "fail"}, "-latest": {"compression": "zstd"}}
"""Options that one end knows and the other one does not."""


def test_a_new_target_gets_no_removals_and_a_later_run_sends_those_since(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "new", {"a": b"1", "b": b"1", "never": None})
    compact(spark, broker, "new", tmp_path)
    assert received(broker, "new-latest") == {"a": [b"1"], "b": [b"1"]}
    send(broker, "new", {"a": None})
    compact(spark, broker, "new", tmp_path)
    assert received(broker, "new-latest") == {"a": [b"1", None], "b": [b"1"]}


def test_a_compaction_whose_state_was_deleted_sends_all_keys_again_and_removals_too(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    send(broker, "lost", {"a": b"1", "b": b"1"})
    # A key of the target that the topic has no message of may have been trimmed there, not removed.
    send(broker, "lost-latest", {"old": b"0"})
    compact(spark, broker, "lost", tmp_path)
    shutil.rmtree(tmp_path)
    send(broker, "lost", {"a": None, "b": b"2"})
    compact(spark, broker, "lost", tmp_path)
    expected = {"a": [b"1", None], "b": [b"1", b"2"], "old": [b"0"]}
    assert received(broker, "lost-latest") == expected
    compact(spark, broker, "lost", tmp_path)
    assert received(broker, "lost-latest") == expected
