"""Spark's own Python processes differ from those of applications."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader

from anabranch.spark.service import BrokerService
from anabranch.spark.source.data_source import AnabranchSource

pytestmark = pytest.mark.timeout(600)


def test_tasks_that_reach_brokers_keep_their_modules_from_the_garbage_collector(spark: Any) -> None:
    class ExemptingReader(DataSourceReader):  # type: ignore[misc]
        def read(self, partition: Any) -> Iterator[Any]:
            # Opens a session, which connects when it is asked for something.
            BrokerService("pulsar://127.0.0.1:1").session()
            yield pa.record_batch({"exempted": [gc.get_freeze_count()]})

    class ExemptingSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "exempting"

        def schema(self) -> str:
            return "exempted bigint"

        def reader(self, schema: Any) -> Any:
            return ExemptingReader()

    spark.dataSource.register(ExemptingSource)
    (found,) = spark.read.format("exempting").load().collect()
    assert found.exempted > 10_000


def test_processes_that_plan_queries_keep_their_modules_from_the_garbage_collector(spark: Any) -> None:
    class PlannedReader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, exempted: int) -> None:
            self._exempted = exempted

        def read(self, partition: Any) -> Iterator[Any]:
            yield pa.record_batch({"exempted": [self._exempted]})

    class PlannedSource(AnabranchSource):
        @classmethod
        def name(cls) -> str:
            return "planned"

        def schema(self) -> str:
            return "exempted bigint"

        def reader(self, schema: Any) -> Any:
            # Connects to no broker.
            self.service("pulsar://127.0.0.1:1", ())
            return PlannedReader(gc.get_freeze_count())

    spark.dataSource.register(PlannedSource)
    (found,) = spark.read.format("planned").load().collect()
    assert found.exempted > 10_000
