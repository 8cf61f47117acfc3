"""Spark reads and writes real topics; the peer is a Python data source of Spark without any I/O."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from anabranch import AsyncClient
from anabranch.bench.results import Row
from anabranch.testing.process import BrokerProcess

TOPIC = "topic://public/default/rows"
VALUE = b"x" * 100
SCHEMA = "key binary, value binary"


async def _fill(url: str, count: int) -> None:
    async with AsyncClient(url) as client:
        producer = await client.create_producer(TOPIC)
        keys = [f"key-{n}" for n in range(1000)]
        waiting = [await producer.enqueue_many([VALUE] * 1000, keys=keys) for _ in range(count // 1000)]
        await asyncio.gather(*waiting)


def _rate(count: int, action: Any) -> float:
    action()
    best = 0.0
    for _ in range(2):
        began = time.perf_counter()
        action()
        best = max(best, count / (time.perf_counter() - began))
    return best


def _session() -> Any:
    from pyspark.sql import SparkSession

    from anabranch.bench.toy_source import ToySource

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.dataSource.register(ToySource)
    return spark


def run(scratch: Path, fast: bool) -> list[Row]:
    from pyspark.sql import functions as sql

    count = 200_000 if fast else 2_000_000
    spark = _session()
    with BrokerProcess(scratch / "data") as broker:
        asyncio.run(_fill(broker.url, count))
        options = {"service.url": broker.url, "topic": TOPIC}
        rows = spark.range(0, count, 1, 2).select(
            sql.concat(sql.lit("key-"), (sql.col("id") % 1000).cast("string")).cast("binary").alias("key"),
            sql.lit("x" * 100).cast("binary").alias("value"),
        )

        def read(name: str, **more: str) -> Any:
            frame = spark.read.format(name).options(**more).schema(SCHEMA).load()
            return lambda: frame.write.format("noop").mode("overwrite").save()

        def write(name: str, **more: str) -> Any:
            return lambda: rows.write.format(name).options(**more).mode("append").save()

        ours_read = _rate(count, read("anabranch", **options))
        toy_read = _rate(count, read("toy", rows=str(count)))
        ours_write = _rate(count, write("anabranch", **{**options, "topic": TOPIC + "-written"}))
        toy_write = _rate(count, write("toy"))
    spark.stop()
    floor = "ratio at least 0.50"
    return [
        Row("Spark batch read", "rows/s", ours_read, "Arrow source, no I/O", toy_read, floor),
        Row("Spark batch write", "rows/s", ours_write, "Arrow sink, no I/O", toy_write, floor),
    ]
