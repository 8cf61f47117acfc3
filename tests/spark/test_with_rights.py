"""Spark against a broker that wants credentials: driver and executors prove a role and show no secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import AuthenticationToken, Client
from anabranch.errors import AuthorizationError
from anabranch.spark import pipelines
from simulation.harness.process import BrokerProcess
from tests.harness.rights import RIGHTS
from tests.harness.security import SECURE, token_for

pytestmark = pytest.mark.timeout(600)

TOKEN = token_for("alice")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rights") / "data", SECURE) as process:
        with Client(process.url, authentication=AuthenticationToken(TOKEN)) as client:
            client.create_producer("orders").send_many([b"%d" % n for n in range(100)])
        yield process


def options(broker: BrokerProcess, topic: str, **role: str) -> dict[str, str]:
    return {"service.url": broker.url, "topic": topic, **role}


def test_a_stream_reads_its_token_from_a_file_and_shows_it_nowhere(
    spark: Any, broker: BrokerProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, checkpoint = tmp_path / "role.token", tmp_path / "checkpoint"
    file.write_text(TOKEN)
    role = {"authPluginClassName": "token", "authParams": file.as_uri()}
    source = (
        spark.readStream.format("anabranch")
        .options(**options(broker, "orders", **role), startingOffsets="earliest")
        .load()
    )
    query = (
        source.select("key", "value")
        .writeStream.format("anabranch")
        .options(**options(broker, "copy", **role), checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert sum(progress.numInputRows for progress in query.recentProgress) == 100
    progress = json.dumps([json.loads(one.json) for one in query.recentProgress])
    stored = "".join(path.read_text(errors="replace") for path in checkpoint.rglob("*") if path.is_file())
    shown = capfd.readouterr()
    for text in (progress, stored, shown.out, shown.err):
        assert TOKEN not in text


def test_a_token_in_an_option_is_hidden_by_spark(
    spark: Any, broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = (
        spark.read.format("anabranch")
        .options(**options(broker, "orders", **{"client.auth.token": TOKEN}))
        .load()
    )
    assert frame.count() == 100
    frame.explain(extended=True)
    with pytest.raises(Exception, match="no_such_column") as raised:
        frame.select("no_such_column").collect()
    shown = capfd.readouterr()
    for text in (shown.out, shown.err, str(raised.value)):
        assert TOKEN not in text


def test_a_wrong_token_fails_the_query_with_the_reason_and_without_the_token(
    spark: Any, broker: BrokerProcess
) -> None:
    wrong = token_for("alice", key=b"another secret of thirty-two bytes")
    frame = spark.read.format("anabranch").options(
        **options(broker, "orders", **{"client.auth.token": wrong})
    )
    with pytest.raises(Exception, match="AuthenticationError") as raised:
        frame.load().collect()
    assert wrong not in str(raised.value)


def test_a_load_without_the_right_to_write_fails_before_it_orders_rows(spark: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "rows.csv").write_text("n\n1\n")
    with BrokerProcess(tmp_path / "data", RIGHTS) as broker:
        place = pipelines.TopicPlace("orders", broker.url, {"client.auth.token": TOKEN})
        options = pipelines.LoadOptions(state=str(state))
        with pytest.raises(AuthorizationError, match="needs the right to produce"):
            pipelines.load(spark, str(tmp_path / "rows.csv"), place, options, pipelines.silent)
    assert not (state / "ordered").exists()
    assert not (state / "plans").exists()
