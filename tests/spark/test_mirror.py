"""`anabranch pipeline mirror` between two real brokers: killed in the middle, resumed and verified."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.client.api import AsyncClient
from anabranch.model.names import TopicName
from anabranch.spark.pipelines.progress import silent
from anabranch.spark.pipelines.proofs.verify_pass import Expectations
from anabranch.spark.pipelines.proofs.verifying import verify
from anabranch.spark.pipelines.stored_topics import stored_topic
from anabranch.spark.pipelines.topic_places import TopicPlace
from simulation.harness.process import BrokerProcess
from tests.harness.spark_drivers import DriverProcess

pytestmark = pytest.mark.timeout(900)

KEYS = 23
ORDERS = TopicName.parse("topic://public/default/orders")
COPY = TopicName.parse("topic://public/default/copy")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    settings = {"auto_scale.enabled": "false"}
    with BrokerProcess(tmp_path / "one", settings) as one, BrokerProcess(tmp_path / "two", settings) as two:
        yield one, two


def publish(broker: BrokerProcess, numbers: Sequence[int]) -> None:
    """Send numbers with header and event time; each seventh message of a key is a tombstone."""

    async def send() -> None:
        async with AsyncClient(broker.url) as client:
            producer = await client.create_producer("orders")
            for n in numbers:
                await producer.enqueue(
                    None if n // KEYS % 7 == 6 else str(n).encode(),
                    key=f"key-{n % KEYS}",
                    properties={"number": str(n // KEYS), "n": str(n)},
                    event_time=datetime.fromtimestamp(1_700_000_000 + n, UTC),
                )
            await producer.flush()

    asyncio.run(send())


def start_mirror(brokers: tuple[BrokerProcess, BrokerProcess], state: Path, *words: str) -> DriverProcess:
    one, two = brokers
    given = ["--url", one.url, "--to-url", two.url, "--state", str(state)]
    given += ["--option", "maxOffsetsPerTrigger=300", "--master", "local[2]"]
    for setting in ("spark.driver.memory=1g", "spark.ui.enabled=false", "spark.driver.host=127.0.0.1"):
        given += ["--spark-conf", setting]
    command = ["-m", "anabranch.cli.main", "pipeline", "mirror", "orders", "copy", *given, *words]
    return DriverProcess(command, state.parent / "mirror.log")


def stored(broker: BrokerProcess) -> int:
    return stored_topic(TopicPlace("copy", broker.url)).messages


def test_a_mirror_killed_in_the_middle_resumes_without_loss_or_repetition(
    spark: Any, brokers: tuple[BrokerProcess, BrokerProcess], tmp_path: Path
) -> None:
    one, two = brokers
    with AdminClient(one.http_url) as source, AdminClient(two.http_url) as target:
        source.create_topic(ORDERS, 2)
        target.create_topic(COPY, 1)
        publish(one, range(1500))
        mirror = start_mirror(brokers, tmp_path / "state", "--interval", "0 seconds")
        try:
            deadline = time.monotonic() + 300
            while stored(two) < 300:
                assert mirror.running, mirror.log_text
                assert time.monotonic() < deadline, "the mirror copies nothing"
                time.sleep(0.05)
        finally:
            mirror.kill()
        # The kill met the middle of the copy.
        assert 300 <= stored(two) < 1500
        source.split(ORDERS, 0)
        target.split(COPY, 0, parts=3)
        publish(one, range(1500, 2500))
        target.merge(COPY, [1, 2])
        start_mirror(brokers, tmp_path / "state", "--once").wait()
    place = TopicPlace("copy", two.url)
    expect = Expectations(sequence_header="number", sequence_first=0, complete=True)
    report = verify(spark, place, expect, silent)
    assert report.findings == ()
    assert (report.counts.messages, report.counts.keys) == (2500, KEYS)
    columns = "value binary, key binary, eventTime timestamp, headers array<struct<key:string,value:binary>>"
    for row in stored_topic(place).frame(spark, columns).collect():
        n = int({header.key: bytes(header.value) for header in row.headers}["n"])
        assert bytes(row.key).decode() == f"key-{n % KEYS}"
        assert row.eventTime.timestamp() == 1_700_000_000 + n
        assert row.value == (None if n // KEYS % 7 == 6 else str(n).encode())
