"""`archive` of a topic with entries that cannot be read, and a replay of the other ones."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.spark import pipelines
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.lake.lake_log import LakeLog
from simulation.harness.process import BrokerProcess
from simulation.world.lies import HIDDEN

pytestmark = pytest.mark.timeout(600)

CLASSIC = "persistent://public/default/orders"


async def publish_around_a_bad_entry(url: str) -> None:
    async with BulkClient(url) as client:
        producer = await client.append_to_log(CLASSIC, None, "archived")
        for n in range(20):
            await producer.send(b"%d" % n, key=f"key-{n % 3}")
            if n == 9:
                # Its payload is not a batch of four messages, which only a reader can notice.
                await (await producer.enqueue_entries([(HIDDEN[0].entry(), 4)]))


def test_bad_entries_stop_an_archive_unless_they_are_skipped(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    asyncio.run(publish_around_a_bad_entry(broker.url))
    lake, options = str(tmp_path / "lake"), pipelines.ArchiveOptions(buckets=2, rows_per_commit=8)
    place = pipelines.TopicPlace(CLASSIC, broker.url)
    with pytest.raises(PipelineError, match="cannot be read"):
        pipelines.archive(spark, place, lake, options, pipelines.silent)
    lenient = pipelines.TopicPlace(CLASSIC, broker.url, {"badEntries": "skip"})
    done = pipelines.archive(spark, lenient, lake, options, pipelines.silent)
    assert done.total_rows == 20
    rows = pipelines.replay(spark, lake, lenient).orderBy("position").collect()
    assert [int(row.value) for row in rows] == list(range(20))
    assert rows[-1].position == 23


def test_an_archive_from_a_time_on_goes_on_from_its_manifest(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    place = pipelines.TopicPlace("timed", broker.url, {"STARTINGTIMESTAMP": "-1h"})
    lake, options = tmp_path / "lake", pipelines.ArchiveOptions(buckets=1)
    for number in (1, 2):
        with anabranch.Client(broker.url) as client:
            client.create_producer("timed").send(b"%d" % number, key="a")
        assert pipelines.archive(spark, place, str(lake), options, pipelines.silent).total_rows == number
        shutil.rmtree(lake / "_anabranch" / "checkpoint")


def test_a_limit_of_the_session_leaves_the_files_of_a_lake_whole(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(4).selectExpr("id AS segment", "id AS position", "0 AS bucket").coalesce(1)
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "1")
    try:
        staged = LakeLog(spark, str(tmp_path)).stage(rows, ["bucket"])
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert [one.rows for one in staged.files] == [4]
