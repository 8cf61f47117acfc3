"""`skew` over a real broker, its suggestions carried out, and the commands that print the reports."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.cli.main import main
from anabranch.cli.parsing import make_app
from anabranch.cli.pipelines import proofs
from anabranch.cli.pipelines.starting import PipelineJob
from anabranch.client.api import AsyncClient
from anabranch.errors import InvalidConfigurationError
from anabranch.model.hashing import bucket_hash, key_hash
from anabranch.model.names import TopicName
from anabranch.spark.pipelines.progress import silent
from anabranch.spark.pipelines.proofs.skew_plot import save_plot
from anabranch.spark.pipelines.proofs.weighing import SkewOptions, skew
from anabranch.spark.pipelines.topic_places import TopicPlace
from simulation.harness.process import BrokerProcess

pytestmark = pytest.mark.timeout(600)

ORDERS = TopicName.parse("topic://public/default/orders")


def keys_in(lo: int, hi: int, count: int) -> list[str]:
    """Return keys whose slots lie between two slots."""
    found = (f"key-{n}" for n in range(10**6) if lo <= key_hash(f"key-{n}") >> 16 <= hi)
    return [next(found) for _ in range(count)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a topic of two segments, of which the first takes most of the messages."""
    process = BrokerProcess(tmp_path_factory.mktemp("skew") / "data", {"auto_scale.enabled": "false"})
    with process, AdminClient(process.http_url) as api:
        api.create_topic(ORDERS, 2)
        crowded, others = keys_in(0, 0x0FFF, 40), keys_in(0x8000, 0xFFFF, 10)
        asyncio.run(_publish(process.url, [*crowded * 20, *[crowded[0]] * 100, *others * 10]))
        yield process


async def _publish(url: str, keys: Sequence[str | None], topic: str = "orders") -> None:
    async with AsyncClient(url) as client:
        producer = await client.create_producer(topic)
        await producer.send_many([b"12345"] * len(keys), keys)
        await producer.send(b"without a key")


def command(spark: Any, broker: BrokerProcess, *words: str) -> dict[str, Any]:
    """Run a pipeline command in the session of the tests; `main` would end it."""
    _, bound, _ = make_app().parse_args(["pipeline", *words, "--url", broker.url])
    topic, how, at = (bound.arguments[name] for name in ("topic", "how", "at"))
    given = SimpleNamespace(topic=topic, at=at, **vars(how))
    return dict(getattr(proofs, words[0])(PipelineJob(given, spark, silent)))


def test_a_crowded_segment_is_found_and_its_suggested_split_can_be_carried_out(
    spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = skew(spark, TopicPlace("orders", broker.url), show=silent)
    assert (report.unit, report.total, report.without_key) == ("messages", 1000, 1)
    first, second = report.segments
    assert (first.weight, second.weight) == (900, 100)
    assert first.largest_part < 0.6
    assert not second.points
    heaviest = report.heavy_keys[0]
    assert (heaviest.weight, heaviest.segment, sum(heaviest.over_time.values())) == (120, 0, 120)
    assert sum(report.heat.values()) == 1000
    (suggested, *_) = report.commands()
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)
    assert main(suggested.split()[1:]) == 0
    after = skew(spark, TopicPlace("orders", broker.url), show=silent)
    assert {one.segment.range.start for one in after.segments} == {0, *first.points, 0x8000}
    assert max(one.weight for one in after.segments) < 600


def test_suggested_bucket_boundaries_can_be_carried_out(
    spark: Any, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AdminClient(broker.http_url) as api:
        api.create_topic(TopicName.parse("topic://public/default/buckets"), 1)
    # All messages fall into the first of four equal buckets.
    crowded = [f"key-{n}" for n in range(200) if bucket_hash(key_hash(f"key-{n}")) < 0x4000][:24]
    asyncio.run(_publish(broker.url, crowded * 10, "buckets"))
    place = TopicPlace("buckets", broker.url)
    report = skew(spark, place, show=silent)
    (before,) = report.segments
    assert before.segment.bucket_splits == (0x4000, 0x8000, 0xC000)
    (suggested,) = report.commands()
    assert suggested.startswith("anabranch topic rebucket buckets 0 --boundaries 0x")
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)
    assert main(suggested.split()[1:]) == 0
    after = skew(spark, place, show=silent)
    (made,) = after.segments
    assert (made.segment.id, made.segment.bucket_splits) == (1, before.boundaries)
    assert after.commands() == []


def test_the_skew_command_prints_tables_and_saves_a_picture(
    spark: Any, broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg, png = tmp_path / "orders.svg", tmp_path / "orders.png"
    found = command(spark, broker, "skew", "orders", "--segments", "8", "--plot", str(svg))
    printed = capsys.readouterr().out
    assert "0000-0fff |" in printed
    assert "anabranch topic split orders" in printed
    assert svg.read_text().startswith("<?xml")
    json.dumps(found)
    report = skew(spark, TopicPlace("orders", broker.url), SkewOptions("bytes", interval_s=3600), silent)
    assert report.without_key == len(b"without a key")
    assert report.heavy_keys[0].weight == 120 * (5 + len(report.heavy_keys[0].key))
    assert len(report.times) <= 2
    save_plot(report, str(png))
    assert png.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidConfigurationError, match=r"png or .svg"):
        save_plot(report, "orders.gif")
    # The topic does not exist: a picture that cannot be written is refused before the topic is weighed.
    with pytest.raises(InvalidConfigurationError, match="there is no directory"):
        command(spark, broker, "skew", "no-topic", "--plot", str(tmp_path / "none/orders.png"))


def test_the_verify_command_exits_with_1_and_a_table_if_it_finds_a_fault(
    spark: Any, broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    asyncio.run(_publish_numbers(broker.url, [1, 2, 4]))
    faulty = command(spark, broker, "verify", "numbers", "--sequence-path", "$.n")
    assert (faulty["exit"], faulty["messages"]) == (1, 3)
    assert "from 1 producer: 1 missing" in faulty["text"]
    printed = capsys.readouterr().out
    assert "number 3 of the key" in printed
    json.dumps(faulty)


def test_the_commands_of_the_guide_run(
    spark: Any, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    lines = [
        line for block in re.findall(r"```bash\n(.*?)```", guide, re.DOTALL) for line in block.splitlines()
    ]
    assert [line.split()[2] for line in lines] == ["verify", "skew", "mirror"]
    for line in lines:
        words = shlex.split(line.replace("/lake/", f"{tmp_path}/"))[1:]
        # The default state is relative to the directory in which Spark was started.
        words += ["--state", str(tmp_path / "state")] if "mirror" in words else []
        assert main(words) == 0, line
    assert (tmp_path / "orders.svg").exists()


async def _publish_numbers(url: str, numbers: Sequence[int]) -> None:
    async with AsyncClient(url) as client:
        producer = await client.create_producer("numbers")
        for number in numbers:
            await producer.send(json.dumps({"n": number}).encode(), key="k")
