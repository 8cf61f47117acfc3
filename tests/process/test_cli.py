"""The command line against a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import anabranch
from anabranch.cli.main import main
from simulation.harness.process import BrokerProcess

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
    assert run("topic", "delete", "orders", "--yes")[0] == 0
    code, _, error = run("topic", "show", "orders")
    assert code == 1
    assert "does not exist" in error


def test_messages_go_in_and_come_out_in_order(run: Run) -> None:
    run("topic", "create", "orders", "--segments", "2")
    code, out, _ = run("produce", "orders", "--key", "k{n}", "--value", "v{n}", "--count", "20", "--json")
    assert code == 0
    assert json.loads(out)["messages"] == 20
    assert run("produce", "orders", "--key", "k3", "--value", "again")[0] == 0
    looked = run("consume", "orders", "--from", "earliest", "--count", "21", "--timeout", "10")
    assert looked[0] == 0
    lines = looked[1].splitlines()
    assert sorted(lines) == sorted([f"k{n}\tv{n}" for n in range(20)] + ["k3\tagain"])
    assert lines.index("k3\tv3") < lines.index("k3\tagain")
    again = run("consume", "orders", "--from", "earliest", "--count", "21", "--timeout", "10")
    assert sorted(again[1].splitlines()) == sorted(lines), "a look acknowledges nothing"
    assert run("subscription", "list", "orders")[1] == "topic://public/default/orders has no subscriptions\n"

    durable = ("consume", "orders", "--subscription", "s", "--from", "earliest")
    assert len(run(*durable, "--count", "21", "--timeout", "10")[1].splitlines()) == 21
    assert run(*durable, "--timeout", "0.3")[1] == "", "the subscription has nothing left"
    assert run("subscription", "list", "orders")[1] == "s, stream, 0 consumers, backlog 0\n"


BINARY = b"\xff\x00\n"


@pytest.mark.parametrize("topic", ["topic://public/default/t", "persistent://public/default/t"])
def test_values_of_every_kind_are_printed_and_acknowledged(run: Run, topic: str) -> None:
    with anabranch.Client(os.environ["ANABRANCH_URL"]) as client:
        producer = client.create_producer(topic)
        producer.send(BINARY, key="k")
        producer.send(b"tea", key="k")
    assert run("produce", topic, "--key", "k", "--tombstone")[0] == 0
    look = ("consume", topic, "--from", "earliest", "--count", "3", "--timeout", "10")
    assert run(*look)[1] == "k\tbase64:/wAK\nk\ttea\nk\t(null)\n"
    assert run(*look, "-o", "hex")[1] == "k\tff000a\nk\t746561\nk\t(null)\n"
    assert run(*look, "-o", "base64")[1] == "k\t/wAK\nk\tdGVh\nk\t(null)\n"
    values = [json.loads(line)["value"] for line in run(*look, "-o", "json")[1].splitlines()]
    assert values == [{"base64": "/wAK"}, "tea", None]
    for more in ([], ["--type", "queue"]):
        durable = ("consume", topic, "--subscription", f"s{len(more)}", "--from", "earliest", *more)
        assert len(run(*durable, "--count", "3", "--timeout", "10")[1].splitlines()) == 3
        assert run(*durable, "--timeout", "0.3")[1] == "", "the tombstone is acknowledged"


def test_raw_values_are_printed_byte_for_byte(run: Run) -> None:
    url = os.environ["ANABRANCH_URL"]
    with anabranch.Client(url) as client:
        client.create_producer("pictures").send(BINARY)
    command = [sys.executable, "-m", "anabranch", "consume", "pictures", "--from", "earliest", "--count", "1"]
    shown = subprocess.run([*command, "-o", "raw", "--url", url], capture_output=True, check=True)
    assert shown.stdout == BINARY


@pytest.mark.parametrize("topic", ["topic://public/default/typo", "persistent://public/default/typo"])
@pytest.mark.parametrize("more", [(), ("--subscription", "s")])
def test_consuming_creates_no_topic(run: Run, topic: str, more: tuple[str, ...]) -> None:
    code, _, error = run("consume", topic, "--timeout", "0.1", *more)
    assert code == 1
    assert "--create" in error
    assert run("topic", "list")[1] == ""
    assert run("consume", topic, "--timeout", "0.1", "--create", *more)[0] == 0
    assert run("topic", "list")[1] == f"{topic}\n"


def test_a_consumer_that_waits_in_vain_hears_how_to_see_stored_messages(run: Run) -> None:
    run("produce", "orders", "--value", "v")
    look = ("consume", "orders", "--timeout", "0.1")
    assert "--from earliest" in run(*look)[2]
    assert run(*look, "--from", "earliest")[1:] == ("v\n", "")
    assert "subscription seek" in run(*look, "--subscription", "s")[2]
    run("topic", "create", "empty")
    assert (
        run("consume", "empty", "--timeout", "0.1", "--from", "earliest")[2] == "anabranch: no message came\n"
    )


def test_a_classic_topic_from_creation_to_migration(run: Run) -> None:
    name = "persistent://public/default/classic"
    created = run("topic", "create", name, "--partitions", "2", "--json")
    assert json.loads(created[1]) == {"topic": name, "partitions": 2}
    assert run("topic", "create", "persistent://public/default/plain")[1].endswith("without partitions\n")
    assert run("topic", "list")[1] == f"{name}\npersistent://public/default/plain\n"
    assert run("subscription", "create", name, "s")[0] == 0
    for _ in range(3):
        assert run("produce", name, "--value", "v")[0] == 0
    shown = run("topic", "show", name)[1]
    assert f"{name}   classic, 2 partitions, 3 messages in" in shown
    assert "subscription s, unused, 0 consumers, backlog 3" in shown
    assert json.loads(run("subscription", "show", name, "s", "--json")[1])["backlog"] == 3
    assert run("subscription", "skip", name, "s", "--yes")[0] == 0
    assert json.loads(run("subscription", "list", name, "--json")[1])["s"]["backlog"] == 0
    assert run("subscription", "seek", name, "s", "--to", "1h")[0] == 0
    assert json.loads(run("subscription", "list", name, "--json")[1])["s"]["backlog"] == 3
    assert run("subscription", "delete", name, "s", "--yes")[0] == 0
    assert "no subscription" in run("subscription", "show", name, "s")[2]
    assert run("topic", "delete", "persistent://public/default/plain", "--yes")[0] == 0
    assert "migrated topic://public/default/classic to 2 segments" in run("topic", "migrate", name)[1]
    assert json.loads(run("topic", "list", "--json")[1]) == ["topic://public/default/classic"]
    assert "0, 1 · 2 partitions" in run("topic", "show", "classic")[1]


@pytest.mark.parametrize("command", ["why", "split 0", "merge 0 1", "rebucket 0 --buckets 2"])
def test_commands_about_segments_tell_classic_topics_from_missing_ones(run: Run, command: str) -> None:
    name = "persistent://public/default/classic"

    def refused(topic: str) -> str:
        verb, *more = command.split()
        code, _, error = run("topic", verb, topic, *more)
        assert code == 1
        return error.strip()

    assert refused(name) == f"anabranch: {name} does not exist"
    run("topic", "create", name, "--partitions", "2")
    assert refused(name).endswith(f"`anabranch topic migrate {name}` makes it scalable")
    assert refused(f"{name}-partition-1").endswith(f"`anabranch topic migrate {name}` makes it scalable")
    run("topic", "migrate", name)
    assert refused(name).endswith("the name of its scalable topic is topic://public/default/classic")
    assert "migrated: `anabranch topic show topic://public/default/classic`" in run("topic", "show", name)[1]


def test_a_subscription_of_a_scalable_topic_is_made_moved_and_deleted(run: Run) -> None:
    run("topic", "create", "orders")
    assert run("subscription", "create", "orders", "q", "--type", "queue", "--json")[0] == 0
    assert run("subscription", "create", "orders", "q")[1].endswith("has subscription q already\n")
    run("produce", "orders", "--value", "v", "--count", "4")
    assert run("subscription", "list", "orders")[1] == "q, queue, 0 consumers, backlog 4\n"
    assert run("subscription", "skip", "orders", "q", "--yes")[0] == 0
    assert run("subscription", "show", "orders", "q")[1] == "q, queue, 0 consumers, backlog 0\n"
    assert run("subscription", "seek", "orders", "q", "--to", "2000-01-01")[0] == 0
    assert run("subscription", "show", "orders", "q")[1] == "q, queue, 0 consumers, backlog 4\n"
    assert run("subscription", "skip", "orders", "q", "--yes")[0] == 0
    moved = run("subscription", "seek", "orders", "q", "--to", "earliest")
    assert moved[1] == "subscription q goes on with the first message\n"
    assert run("subscription", "show", "orders", "q")[1] == "q, queue, 0 consumers, backlog 4\n"
    assert run("subscription", "delete", "orders", "q", "--yes")[1].startswith("deleted subscription q")


def test_a_policy_is_set_shown_and_removed(run: Run) -> None:
    run("topic", "create", "persistent://public/default/t")
    for owner in ("public/default", "persistent://public/default/t"):
        value = '{"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}'
        assert run("policy", "set", owner, "retention", value)[1] == f"set retention of {owner}\n"
        assert json.loads(run("policy", "show", owner, "retention", "--json")[1])["retention"] == json.loads(
            value
        )
        assert run("policy", "remove", owner, "retention", "--yes")[0] == 0
        assert run("policy", "show", owner, "retention")[1] == "retention: not set\n"
    assert run("policy", "set", "public/default", "noSuchPolicy", "1")[0] == 1
    assert "not valid JSON" in run("policy", "set", "public/default", "retention", "{")[2]
    assert "name the policy" in run("policy", "show", "persistent://public/default/t")[2]
    for words in (
        ("show", "orders"),
        ("set", "a/b/orders", "retention", "1"),
        ("remove", "orders", "retention"),
    ):
        assert "topic://public/default/orders" in run("policy", *words)[2]


def test_a_schema_is_added_compared_shown_and_deleted(run: Run, tmp_path: Path) -> None:
    run("topic", "create", "orders")
    first, other = tmp_path / "first.avsc", tmp_path / "other.avsc"
    record = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]}
    first.write_text(json.dumps(record))
    changed = [*record["fields"], {"name": "customer", "type": "string"}]
    other.write_text(json.dumps({**record, "fields": changed}))
    add = ("schema", "add", "orders", "--type", "avro", "--file")
    assert run(*add, str(first))[1] == "version 0 of the schema of topic://public/default/orders\n"
    assert run("schema", "list", "orders")[1] == "version 0, AVRO\n"
    assert json.loads(run("schema", "show", "orders", "--json")[1])["type"] == "AVRO"
    code, text, _ = run("schema", "check", "orders", "--type", "avro", "--file", str(other))
    assert (code, text.startswith("not compatible (FULL)")) == (1, True), text
    assert run(*add, str(other))[0] == 1
    assert run("schema", "delete", "orders", "--yes")[0] == 0
    assert run("schema", "show", "orders")[0] == 1
    code, _, reason = run("schema", "delete", "orders", "--yes")
    assert (code, "topic://public/default/orders has no schema" in reason) == (1, True), reason


def test_a_namespace_shows_its_policies(run: Run) -> None:
    assert run("namespace", "create", "public/shop")[0] == 0
    assert "public/shop" in json.loads(run("namespace", "list", "--json")[1])
    assert run("namespace", "show", "public/shop")[0] == 0
    assert (
        run("namespace", "delete", "public/shop", "--yes", "--json")[1]
        == '{\n  "deleted": "public/shop"\n}\n'
    )


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
