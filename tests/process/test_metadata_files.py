"""Metadata files of a killed broker are damaged or deleted; the next start serves every topic as before."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch import Client
from anabranch.admin.client import AdminClient
from anabranch.admin.client.http_client import Json
from anabranch.admin.models.body import plain
from anabranch.cli.main import main
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

from .conftest import MakeBroker

TOPICS = [f"orders-{number}" for number in range(4)]


def flip_bits(file: Path) -> None:
    data = bytearray(file.read_bytes())
    rng = random.Random(3)
    for _ in range(50):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


HARMS: dict[str, Callable[[Path], None]] = {
    "write-ahead log": lambda data: flip_bits(data / "metadata.db-wal"),
    "database": lambda data: (data / "metadata.db").unlink(),
    "record log": lambda data: shutil.rmtree(data / "metadata-log"),
}


def name_of(topic: str) -> TopicName:
    return TopicName.parse(f"topic://public/default/{topic}")


def segments(broker: BrokerProcess) -> dict[str, Json]:
    with AdminClient(broker.http_url) as admin:
        return {topic: plain(admin.topic_metadata(name_of(topic)))["segments"] for topic in TOPICS}


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_metadata_loses_no_topic_and_no_layout(make_broker: MakeBroker, harm: str) -> None:
    broker = make_broker(workers=1 + (harm == "database")).start()
    with Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        for topic in TOPICS:
            client.create_producer(topic).send(b"before", key="k")
            admin.split(name_of(topic), 0)
    before = segments(broker)
    broker.kill()
    HARMS[harm](broker.data)
    broker.start()
    assert segments(broker) == before
    with Client(broker.url) as client:
        for topic in TOPICS:
            client.create_producer(topic).send(b"after", key="k")
            consumer = client.subscribe_stream(topic, "s", initial_position="earliest")
            for expected in (b"before", b"after"):
                message = consumer.receive(timeout=20)
                assert message.value == expected
                consumer.acknowledge_cumulative(message)
    assert "metadata" in broker.log_text
    assert "WARNING" in broker.log_text
    assert broker.stop() == 0


def test_a_store_whose_directory_is_gone_is_not_begun_anew_by_itself(
    make_broker: MakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make_broker().start()
    with Client(broker.url) as client:
        client.create_producer("orders").send(b"before", key="k")
    assert broker.stop() == 0
    data = ["--data", str(broker.data)]
    assert main(["store", "check", *data]) == 0
    shutil.rmtree(broker.data / "stores" / "0")
    with pytest.raises(RuntimeError, match="holds another store"):
        broker.start()
    assert main(["store", "check", *data]) == 1
    assert "--accept-loss" in capsys.readouterr().out
    assert main(["store", "repair", "--accept-loss", *data]) == 0
    broker.start()
    with Client(broker.url) as client:
        client.create_producer("orders").send(b"after", key="k")
    with AdminClient(broker.http_url) as admin:
        assert "lost" in str(plain(admin.why(name_of("orders")))["troubles"])
    assert broker.stop() == 0
