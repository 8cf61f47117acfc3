"""A broker with a thousand topics or connections: the short form of `python -m benchmarks scale`.

The bounds are far above the figures of a quiet machine, and below those of a broker that works per topic
where it should not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser

from anabranch.protocol.pb import pulsar_pb2 as pb
from benchmarks.broker.scale import KINDS, Kind, stall_ms
from benchmarks.broker.scale_client import FrameClient, fetch, idle_connections
from simulation.harness.process import BrokerProcess

TOPICS = 1000
parse: Callable[[str], Iterable[Metric]] = parser.text_string_to_metric_families
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_thousand_idle_topics_take_little_memory_and_stall_no_client(tmp_path: Path, kind: Kind) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        time.sleep(0.5)
        empty = broker.memory_bytes()
        kind.seed(broker.port, TOPICS)
        broker.kill()
        broker.start()
        assert len(fetch(broker.http_port, kind.path).split(b",")) == TOPICS
        stall = max(
            stall_ms(broker.port, lambda: fetch(broker.http_port, "/metrics")),
            stall_ms(broker.port, lambda: fetch(broker.http_port, kind.path)),
        )
        each = (broker.memory_bytes() - empty) / TOPICS
    assert each < 15_000, "bytes of one idle topic, the memory of one scrape included"
    assert stall < 1000


def test_idle_connections_take_little_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        time.sleep(0.5)
        empty = broker.memory_bytes()
        with idle_connections(broker.port, 400):
            assert broker.memory_bytes() - empty < 400 * 20_000


def test_a_scrape_at_the_shared_port_shows_every_worker_each_time(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", {"workers": 2}) as broker:
        client = FrameClient(broker.port)
        client.ask([pb.CommandScalableTopicLookup(session_id=1, topic="topic://public/default/t")])
        seen: list[dict[str, float]] = []
        deadline = time.monotonic() + 60
        while len(seen) < 4 and time.monotonic() < deadline:
            text = fetch(broker.http_port, "/metrics", OPENMETRICS).decode()
            families = {family.name: family for family in parse(text)}
            up = {s.labels["worker"]: s.value for s in families["anabranch_worker_up"].samples}
            if up == {"0": 1, "1": 1}:
                starts = families["process_start_time_seconds"].samples
                seen.append({sample.labels["worker"]: sample.value for sample in starts})
        client.close()
        assert len(seen) == 4, "both workers answer"
        assert all(found == seen[0] for found in seen), "a series is always that of the same process"
        assert set(seen[0]) == {"0", "1"}
