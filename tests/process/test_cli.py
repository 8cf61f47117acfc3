"""The command line against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from anabranch.cli.main import main
from anabranch.testing.process import BrokerProcess

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    make_broker: Callable[..., BrokerProcess],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs a command against a fresh broker; exit code, standard output, standard error."""
    broker = make_broker(scalableTopicAutoScaleEnabled="false").start()
    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)
    monkeypatch.setenv("COLUMNS", "90")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_topic_from_creation_to_deletion(run: Run) -> None:
    assert run("topic", "create", "orders", "--property", "colour=red") == (
        0,
        "created topic://public/default/orders with 1 segment\n",
        "",
    )
    code, _, error = run("topic", "create", "orders")
    assert code == 1
    assert "exists already" in error
    assert run("topic", "list") == (0, "topic://public/default/orders\n", "")
    assert run("topic", "list", "--property", "colour=red")[1] == "topic://public/default/orders\n"
    assert run("topic", "list", "--property", "colour=blue")[1] == ""
    assert "two parts or more" in run("topic", "split", "orders", "0", "--parts", "1")[2]
    assert run("topic", "split", "orders", "0", "--parts", "4")[1] == (
        "split segment 0 into 1 (0000-3fff), 2 (4000-7fff), 3 (8000-bfff), 4 (c000-ffff)\n"
    )
    assert run("topic", "merge", "orders", "2", "3")[1] == "merged segments 2, 3 into 5 (4000-bfff)\n"
    assert (
        "segments 1 (0000-3fff) and 4 (c000-ffff) are not neighbours"
        in run("topic", "merge", "orders", "1", "4")[2]
    )
    code, picture, _ = run("topic", "show", "orders")
    assert code == 0
    assert "topic://public/default/orders   epoch 2, 3 active segments, 3 sealed" in picture
    assert "5 · 4000-bfff" in picture
    shown = json.loads(run("topic", "show", "orders", "--json")[1])
    assert shown["metadata"]["epoch"] == 2
    assert shown["stats"]["activeSegments"] == 3
    assert run("topic", "rebucket", "orders", "5", "--buckets", "8")[1] == (
        "replaced segment 5 by 6 (4000-bfff) with 8 buckets\n"
    )
    assert run("topic", "rebucket", "orders", "6", "--boundaries", "0x100,0x8000")[1] == (
        "replaced segment 6 by 7 (4000-bfff) with 3 buckets\n"
    )
    code, _, error = run("topic", "rebucket", "orders", "7", "--buckets", "4", "--by-traffic")
    assert code == 1
    assert "the traffic of segment 7 is not known" in error
    assert "is not known" in run("topic", "split", "orders", "7", "--by-traffic")[2]
    assert run("topic", "why", "orders")[0] == 0
    assert run("topic", "delete", "orders")[0] == 0
    code, _, error = run("topic", "show", "orders")
    assert code == 1
    assert "does not exist" in error


def test_messages_go_in_and_come_out_in_order(run: Run) -> None:
    run("topic", "create", "orders", "--segments", "2")
    code, out, _ = run("produce", "orders", "--key", "k{n}", "--value", "v{n}", "--count", "20", "--json")
    assert code == 0
    assert json.loads(out)["messages"] == 20
    assert run("produce", "orders", "--key", "k3", "--value", "again")[0] == 0
    code, out, _ = run("consume", "orders", "--from", "earliest", "--count", "21", "--timeout", "10")
    assert code == 0
    lines = out.splitlines()
    assert sorted(lines) == sorted([f"k{n}\tv{n}" for n in range(20)] + ["k3\tagain"])
    assert lines.index("k3\tv3") < lines.index("k3\tagain")
    # Everything was acknowledged, so the same subscription has nothing left.
    assert run("consume", "orders", "--timeout", "0.3")[1] == ""


def test_a_message_is_said_to_be_where_it_was_sent(run: Run) -> None:
    for given, stored in (
        ("orders", "topic://public/default/orders"),
        ("persistent://public/default/classic", "persistent://public/default/classic"),
    ):
        assert json.loads(run("produce", given, "--value", "v", "--json")[1])["topic"] == stored


def test_a_queue_consumer_prints_json(run: Run) -> None:
    run("topic", "create", "orders")
    run("produce", "orders", "--value", "hello", "--key", "k")
    code, out, _ = run(
        "consume",
        "orders",
        "--type",
        "queue",
        "--from",
        "earliest",
        "--subscription",
        "q",
        "--count",
        "1",
        "--timeout",
        "10",
        "--json",
    )
    assert code == 0
    message = json.loads(out)
    assert (message["key"], message["value"], message["redeliveryCount"]) == ("k", "hello", 0)


def test_the_wrong_one_of_two_ports_is_told(
    make_broker: Callable[..., BrokerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make_broker().start()
    assert main(["topic", "list", "--admin-url", broker.url.replace("pulsar", "http")]) == 1
    assert "is this the HTTP port" in capsys.readouterr().err
    assert main(["produce", "t", "--value", "v", "--url", broker.http_url.replace("http", "pulsar")]) == 1
    assert "speaks HTTP" in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--url", "pulsar://127.0.0.1:1,127.0.0.1:2"]
    for arguments in (
        ["topic", "list", "--admin-url", "http://127.0.0.1:1"],
        ["produce", "t", "--value", "v", *url],
        ["consume", "t", *url],
    ):
        assert main(arguments) == 1
        assert "is `anabranch serve` running" in capsys.readouterr().err
