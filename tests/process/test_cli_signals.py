"""`anabranch consume` and `anabranch produce` leave properly when a signal ends them."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.cli.main import main
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

ORDERS = TopicName.parse("topic://public/default/orders")
PATIENCE_S = 60.0

Command = subprocess.Popen[str]


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    # A consumer that only disappeared would keep its segments for the whole test.
    return make_broker(scalableTopicConsumerSessionGracePeriodSeconds=600).start()


@pytest.fixture
def run(broker: BrokerProcess) -> Iterator[Callable[..., Command]]:
    """Starts a command of the command line; it is gone when the test ends."""
    started: list[Command] = []
    # A shell starts background jobs with SIGINT ignored, and every child inherits it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*words: str, **pipes: Any) -> Command:
        command = [sys.executable, "-m", "anabranch.cli.main", *words, "--url", broker.url]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
    signal.signal(signal.SIGINT, before)


def next_line(process: Command) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE_S)[0], "the command printed nothing"
    return process.stdout.readline()


def members(broker: BrokerProcess) -> dict[str, Any]:
    with AdminClient(broker.http_url) as admin:
        found: dict[str, Any] = plain(admin.why(ORDERS))["subscriptions"]["s"]["consumers"]
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_consumer_that_is_ended_gives_its_segments_to_others_at_once(
    broker: BrokerProcess, run: Callable[..., Command], number: signal.Signals, code: int
) -> None:
    assert main(["produce", "orders", "--value", "one", "--url", broker.url]) == 0
    consuming = ("consume", "orders", "--subscription", "s", "--from", "earliest")
    first = run(*consuming)
    assert next_line(first) == "one\n"
    assert len(members(broker)) == 1
    first.send_signal(number)
    assert first.wait(PATIENCE_S) == code
    assert members(broker) == {}, "the leader does not wait for the consumer to return"
    second = run(*consuming)
    assert main(["produce", "orders", "--value", "two", "--url", broker.url]) == 0
    assert next_line(second) == "two\n", "the first consumer has acknowledged its message"


def test_a_producer_that_is_ended_completes_its_messages_and_reports_them(
    broker: BrokerProcess, run: Callable[..., Command]
) -> None:
    with AdminClient(broker.http_url) as admin:
        # A consumer creates no topic, and may be faster than the producer.
        admin.create_topic(ORDERS, 1)
    process = run("produce", "orders", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("a\nb\nc\n")
    process.stdin.flush()
    reader = run("consume", "orders", "--from", "earliest", "--count", "3")
    assert sorted(reader.communicate(timeout=PATIENCE_S)[0].splitlines()) == ["a", "b", "c"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 143
    assert process.stderr is not None
    assert "3 messages stored in topic://public/default/orders" in process.stderr.read()


def test_a_consumer_whose_broker_is_gone_ends_in_time(
    broker: BrokerProcess, run: Callable[..., Command]
) -> None:
    assert main(["produce", "orders", "--value", "one", "--url", broker.url]) == 0
    process = run("consume", "orders", "--from", "earliest")
    next_line(process)
    broker.kill()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 143
    assert time.monotonic() - began < PATIENCE_S / 2
