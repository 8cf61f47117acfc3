"""`anabranch bench` at a real broker: every message is counted, and only what it names is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tools.snippets import snippets

ORDERS = TopicName.parse("topic://public/default/orders")
CLASSIC = "persistent://public/default/classic"
Bench = Callable[..., dict[str, Any]]


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return make_broker().start()


@pytest.fixture
def bench(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    """Runs a benchmark to its end; returns its figures."""
    monkeypatch.setenv("ANABRANCH_URL", broker.url)

    def run(text: str) -> dict[str, Any]:
        code = main(["bench", *text.split(), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        found: dict[str, Any] = json.loads(captured.out)
        return found

    return run


def subscriptions(broker: BrokerProcess) -> list[str]:
    with AdminClient(broker.http_url) as admin:
        return sorted(admin.topic_stats(ORDERS).subscriptions)


def test_consumers_of_every_kind_receive_what_is_published(bench: Bench, broker: BrokerProcess) -> None:
    published = bench("publish orders --count 2000 --size 10-200 --producers 2 --quiet")
    assert (published["messages"], published["errors"]) == (2000, {})
    assert 20_000 <= published["bytes"] <= 400_000
    assert 0 < published["latency_ms"]["p50"] <= published["latency_ms"]["max"]
    assert any("is new" in one for one in published["left"])
    more = bench("publish orders --count 1000 --bulk 100 --compression zstd --keys 5 --quiet")
    assert not any("is new" in one for one in more["left"])
    for kind in ("stream", "queue", "key-ordered", "checkpoint"):
        found = bench(f"consume orders --from earliest --count 3000 --type {kind} --timeout 30 --quiet")
        assert (found["messages"], found["left"]) == (3000, []), kind
        assert found["bytes"] == published["bytes"] + more["bytes"]
    assert subscriptions(broker) == []
    kept = bench("consume orders --from earliest --count 10 --subscription mine --quiet")
    assert kept["left"] == [f"the subscription mine of {ORDERS}"]
    assert subscriptions(broker) == ["mine"]


def test_the_commands_of_the_guide_run(bench: Bench) -> None:
    (block,) = (snippet for snippet in snippets("docs/bench.md") if snippet.kind == "sh")
    for line in block.text.splitlines():
        shorter = line.replace("--count 1000000", "--count 500").replace("--duration 60", "--duration 1")
        found = bench(shorter.removeprefix("anabranch bench ") + " --quiet")
        assert found["command"] in line


@pytest.mark.parametrize("topic", [str(ORDERS), CLASSIC])
def test_every_message_of_a_latency_run_arrives(bench: Bench, topic: str) -> None:
    found = bench(f"latency {topic} --count 300 --rate 1000 --type queue --consumers 2 --interval 0.1")
    assert (found["stored"]["messages"], found["end_to_end"]["messages"], found["lost"]) == (300, 300, 0)
    assert found["end_to_end"]["latency_ms"]["p50"] > 0


def test_an_interrupted_run_shows_its_figures(broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "anabranch", "bench", "publish", "orders", "--rate", "200"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command, "--url", broker.url], stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stderr is not None
        assert "messages/s" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"published to {ORDERS}" in out
    assert f"left behind: the topic {ORDERS}" in out
