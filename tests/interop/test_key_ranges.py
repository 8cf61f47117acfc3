"""Key_Shared by ranges of hashes, Pulsar's selector beside consistent hashing, with official clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pulsar
import pytest

from simulation.harness.process import BrokerProcess
from tests.interop.building import JVM, go_program, java_classpath
from tests.interop.case_program import CaseProgram
from tests.interop.features import make_keys, new_topic

# The first run downloads the Java and Go clients.
pytestmark = pytest.mark.timeout(600)

KEYS = [f"key-{number}" for number in range(40)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"subscriptionKeySharedUseConsistentHashing": "false", "workers": 2}
    with BrokerProcess(tmp_path_factory.mktemp("ranges") / "data", settings) as process:
        yield process


def owners(producer: Any, consumers: dict[str, Any]) -> dict[str, str]:
    """Send two messages of each key; return the consumer of each key, which gets both in order."""
    for number in range(2):
        for key in KEYS:
            producer.send(str(number).encode(), partition_key=key)
    got: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    while sum(map(len, got.values())) < 2 * len(KEYS):
        for name, consumer in consumers.items():
            with suppress(pulsar.Timeout):
                message = consumer.receive(timeout_millis=30)
                consumer.acknowledge(message)
                got[message.partition_key()].append((name, message.data()))
    found = {}
    for key, pair in got.items():
        (first, _), (second, _) = pair
        assert first == second, f"{key} went to two consumers"
        assert [value for _, value in pair] == [b"0", b"1"], key
        found[key] = first
    return found


def test_a_newcomer_takes_half_of_the_largest_range_and_leaves_it_again(broker: BrokerProcess) -> None:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic = new_topic("ranges")

    def opened(name: str) -> Any:
        return client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name=name)

    consumers = {name: opened(name) for name in ("a", "b")}
    producer = client.create_producer(topic)
    before = owners(producer, consumers)
    assert set(before.values()) == {"a", "b"}
    consumers["c"] = opened("c")
    between = owners(producer, consumers)
    moved = {key for key in KEYS if between[key] != before[key]}
    assert moved
    assert {between[key] for key in moved} == {"c"}, "only keys of the newcomer move"
    assert len({before[key] for key in moved}) == 1, "one range is split, not each of them"
    consumers.pop("c").close()
    after = owners(producer, consumers)
    assert all(after[key] == before[key] for key in KEYS if key not in moved)
    client.close()


@pytest.mark.long
@pytest.mark.parametrize("language", ["go", "java"])
def test_other_clients_share_keys_by_ranges(
    broker: BrokerProcess, language: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if language == "go":
        command = [str(go_program("features"))]
    else:
        command = ["java", *JVM, "-cp", java_classpath("java-classic"), "anabranch.Features"]
    directory = tmp_path_factory.mktemp(language)
    program = CaseProgram(command, broker, make_keys(directory), directory / "ranges.log")
    try:
        program.run("batching")
    finally:
        program.close()
