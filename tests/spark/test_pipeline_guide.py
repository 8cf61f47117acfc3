"""The commands and the code of docs/pipelines.md for topics and files, against a real broker."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.errors import InvalidConfigurationError, TopicNotFoundError
from anabranch.model.names import TopicName
from anabranch.spark import pipelines
from anabranch.spark.pipelines import progress
from anabranch.spark.pipelines.stored_topics import check_source
from simulation.harness.process import BrokerProcess
from tests.harness.iceberg_tables import make_table
from tests.harness.stored_messages import messages_by_key

pytestmark = pytest.mark.timeout(900)

GUIDE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
ORDERS = TopicName.parse("topic://public/default/orders")
KEYS = 7
COUNT = 140


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("guide") / "data"
    with BrokerProcess(data, {"auto_scale.enabled": "false"}) as process:
        yield process


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    words = [shlex.split(line)[1:] for line in lines if line.startswith("anabranch ")]
    return [found for found in words if found[1] in ("archive", "load", "replay", "compact")]


def publish(client: anabranch.Client, lo: int, hi: int) -> None:
    producer: anabranch.Producer[bytes] = client.create_producer("orders")
    for n in range(lo, hi):
        producer.enqueue(b"%d" % n, key=f"key-{n % KEYS}", properties={"n": str(n)})
    producer.enqueue(None, key="removed")
    producer.flush()
    producer.close()


def numbers(found: dict[str, list[Any]]) -> dict[str, list[int]]:
    return {
        key: [int(message.value) for message in messages]
        for key, messages in found.items()
        if key != "removed"
    }


def expected(count: int) -> dict[str, list[int]]:
    return {f"key-{key}": list(range(key, count, KEYS)) for key in range(KEYS)}


def test_the_guide_does_what_it_says(
    spark: Any,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    events = tmp_path / "events.csv"
    rows = [f"key-{n % KEYS},{n}" for n in reversed(range(COUNT))]
    events.write_text("\n".join(["customer,number", *rows]))
    keys, counted = [f"key-{n % KEYS}" for n in reversed(range(COUNT))], list(reversed(range(COUNT)))
    events_table = pa.table({"customer": keys, "number": counted})
    make_table(tmp_path / "iceberg", events_table.schema).append(events_table)
    with anabranch.Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        admin.create_topic(ORDERS, 1)
        publish(client, 0, COUNT // 2)
        printed = _run_commands(client, admin, tmp_path, capsys)
        # Rows of each command: the removed key has a message too, and a second one behind the first command.
        half = COUNT // 2 + 1
        assert printed == [half, COUNT, 3, 2 * half, half, 2 * half, 2 * half, COUNT]
        again, restored = messages_by_key(client, "again"), messages_by_key(client, "restored")
        assert numbers(again) == expected(COUNT)
        assert [message.properties for message in again["key-1"]][:2] == [{"n": "1"}, {"n": "8"}]
        assert numbers(restored) == expected(COUNT // 2)
        for topic in ("loaded", "from-iceberg"):
            loaded = messages_by_key(client, topic)
            sent = {key: [int(json.loads(m.data)["number"]) for m in ms] for key, ms in loaded.items()}
            assert sent == expected(COUNT)
        latest = {key: found[-1:] for key, found in expected(COUNT).items()}
        assert numbers(messages_by_key(client, "latest")) == latest
        table = spark.read.parquet(str(tmp_path / "latest")).collect()
        assert {row.key.decode(): [int(row.value)] for row in table} == latest
        _run_code(spark, broker, tmp_path)


def _run_commands(client: anabranch.Client, admin: AdminClient, root: Path, capsys: Any) -> list[int]:
    """Run the commands on paths of this test, and return the rows that each of them reports.

    Behind the first one, the topic is split and gets more messages.
    """
    rows = []
    for number, words in enumerate(commands()):
        here = [
            word.replace("/lake/", f"{root}/").replace("events.csv", f"{root}/events.csv") for word in words
        ]
        if words[1] != "archive":
            here += ["--state", str(root / f"state-{number}")]
        capsys.readouterr()
        assert main([*here, "--json"]) == 0, words
        out = capsys.readouterr().out.splitlines()
        rows.append(json.loads(out[-1])["rows"])
        if "--print" in words:
            assert [json.loads(line)["position"] for line in out[:-1]] == [0, 1, 2]
        if number == 0:
            admin.split(ORDERS, 0)
            publish(client, COUNT // 2, COUNT)
    return rows


def _run_code(spark: Any, broker: BrokerProcess, root: Path) -> None:
    """Run the code of the guide, which adds the later messages to the archive."""
    for code in (block for block in blocks("python") if "pipelines.archive(" in block):
        here = code.replace("/lake/", f"{root}/").replace("pulsar://127.0.0.1:6650", broker.url)
        found: dict[str, Any] = {"spark": spark}
        exec(here, found)
        assert (found["done"].rows, found["done"].total_rows) == (COUNT // 2 + 1, COUNT + 2)
        assert found["everything"].count() == COUNT + 2
        assert found["stream"].isStreaming


def test_a_load_takes_options_of_its_reader_and_of_its_sink_and_no_others(
    spark: Any,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    (tmp_path / "few.csv").write_text("a;b\n1;2\n")
    words = ["pipeline", "load", str(tmp_path / "few.csv"), "few-loaded", "--key", "a", "--value", "b"]
    words += ["--state", str(tmp_path / "state"), "--option", "sep=;", "--option"]
    assert main([*words, "maxOffsetsPerTrigger=8"]) == 1
    assert "option maxOffsetsPerTrigger is for reading topics" in capsys.readouterr().err
    assert main([*words, "compression=zstd"]) == 0
    with anabranch.Client(broker.url) as client:
        assert [message.data for message in messages_by_key(client, "few-loaded")["1"]] == [b"2"]


def test_an_option_goes_to_the_end_that_knows_it(
    spark: Any,
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    lake, words = str(tmp_path / "lake"), ["--option", "maxOffsetsPerTrigger=8"]
    with anabranch.Client(broker.url) as client:
        producer: anabranch.Producer[bytes] = client.create_producer("few")
        producer.send_many([b"%d" % n for n in range(40)], [f"key-{n % KEYS}" for n in range(40)])
        producer.close()
        assert main(["pipeline", "archive", "few", lake, *words]) == 0
        # One commit stores the start.
        assert len(list((tmp_path / "lake/_anabranch/commits").glob("*.json"))) == 6
        words += ["--option", "compression=zstd", "--state"]
        assert main(["pipeline", "compact", "few", "--to", "few-latest", *words, str(tmp_path / "one")]) == 0
        assert (
            main(["pipeline", "replay", lake, "few", "--to", "few-again", *words, str(tmp_path / "two")]) == 0
        )
        # A command has one display; a second one on a terminal is an error of older versions of Rich.
        shown = set(re.findall(r"^(.+): [\d,]+ rows, ", capsys.readouterr().err, re.MULTILINE))
        assert shown == {"archive", "compact", "replay"}
        assert numbers(messages_by_key(client, "few-again")) == expected(40)
        latest = {key: found[-1:] for key, found in numbers(messages_by_key(client, "few-latest")).items()}
    assert latest == {key: found[-1:] for key, found in expected(40).items()}
    assert len(list((tmp_path / "one/commits").glob("[0-9]*"))) == 6
    assert main(["pipeline", "replay", lake, "few", "--print", "--option", "startingTimestamp=-1h"]) == 1


def test_a_table_has_the_latest_values_also_when_no_key_is_left(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    place, table = pipelines.TopicPlace("removed", broker.url), str(tmp_path / "table")
    with anabranch.Client(broker.url) as client:
        producer: anabranch.Producer[bytes] = client.create_producer("removed")
        for value, keys in ((b"1", 1), (b"2", 1), (None, 0)):
            producer.send(value, key="a")
            assert pipelines.compact_to_table(spark, place, table, show=pipelines.silent).keys == keys
            found = [(row.key, row.value) for row in pipelines.read_table(spark, table).collect()]
            assert found == [(b"a", value)] * keys
        producer.close()
    with pytest.raises(InvalidConfigurationError, match="is not an archive"):
        pipelines.read_archive(spark, table)
    with pytest.raises(InvalidConfigurationError, match="is not a table"):
        pipelines.read_table(spark, str(tmp_path))


def test_a_wrong_call_leaves_no_lake_behind(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    misspelt, lake = pipelines.TopicPlace("ordres", broker.url), str(tmp_path / "lake")
    with pytest.raises(TopicNotFoundError):
        pipelines.archive(spark, misspelt, lake)
    with pytest.raises(TopicNotFoundError):
        pipelines.compact_to_table(spark, misspelt, lake)
    with anabranch.Client(broker.url) as client:
        client.create_producer("right").close()
    right = pipelines.TopicPlace("right", broker.url)
    for buckets in (0, -3):
        with pytest.raises(InvalidConfigurationError, match="at least 1 bucket"):
            pipelines.archive(spark, right, lake, pipelines.ArchiveOptions(buckets=buckets))
    assert not (tmp_path / "lake").exists()


def test_a_source_that_does_not_exist_is_named_before_a_query_starts(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    misspelt, target = (pipelines.TopicPlace(name, broker.url) for name in ("ordres", "elsewhere"))
    state = str(tmp_path / "state")
    with pytest.raises(TopicNotFoundError):
        pipelines.compact_to_topic(spark, misspelt, target, pipelines.CompactOptions(state=state))
    with pytest.raises(TopicNotFoundError):
        pipelines.mirror(spark, misspelt, target, pipelines.MirrorOptions(state=state))
    lake = tmp_path / "lake" / "_anabranch"
    lake.mkdir(parents=True)
    (lake / "lake.json").write_text(json.dumps({"v": 1, "kind": "archive", "topic": "ordres", "buckets": 8}))
    with pytest.raises(TopicNotFoundError):
        pipelines.replay_to_topic(
            spark, str(lake.parent), misspelt, target, pipelines.ReplayOptions(state=state)
        )
    check_source(pipelines.TopicPlace("ordres", broker.url, {"waitForTopic": True}))
    assert not (tmp_path / "state").exists()


def test_a_lake_of_another_topic_is_refused(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    lake = tmp_path / "lake" / "_anabranch"
    lake.mkdir(parents=True)
    (lake / "lake.json").write_text('{"v": 1, "kind": "archive", "topic": "orders", "buckets": 8}')
    other = pipelines.TopicPlace("other", broker.url)
    with pytest.raises(InvalidConfigurationError, match=r"is not of topic other; its topic is orders"):
        pipelines.archive(spark, other, str(tmp_path / "lake"))
    with pytest.raises(InvalidConfigurationError, match=r"archive of topic orders, not of other"):
        pipelines.replay(spark, str(tmp_path / "lake"), other)
    with pytest.raises(InvalidConfigurationError, match="is not an archive"):
        pipelines.read_archive(spark, str(tmp_path))
    orders = pipelines.TopicPlace("orders", broker.url)
    options = pipelines.ArchiveOptions(buckets=4)
    with pytest.raises(InvalidConfigurationError, match="has 8 buckets"):
        pipelines.archive(spark, orders, str(tmp_path / "lake"), options)
    assert pipelines.read_archive(spark, str(tmp_path / "lake")).count() == 0
