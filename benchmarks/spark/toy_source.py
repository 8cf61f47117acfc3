"""A Python data source of Spark without any I/O: the peer of our source and sink."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

VALUE_BYTES = 100
SCHEMA = "key binary, value binary"


class ToyReader(DataSourceReader):  # type: ignore[misc]
    """Yields the same rows from two partitions."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def partitions(self) -> list[Any]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: Any) -> Iterator[Any]:
        rng = random.Random(1)
        batch = pa.record_batch(
            {
                "key": pa.array([b"key-%d" % rng.randrange(100_000) for _ in range(10_000)], pa.binary()),
                "value": pa.array([rng.randbytes(VALUE_BYTES) for _ in range(10_000)], pa.binary()),
            }
        )
        for _ in range(self.rows // 20_000):
            yield batch


class ToyWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Drops all rows."""

    def write(self, iterator: Iterator[Any]) -> Any:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class ToySource(DataSource):  # type: ignore[misc]
    """`.format("toy")`."""

    @classmethod
    def name(cls) -> str:
        return "toy"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> Any:
        return ToyReader(int(self.options["rows"]))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return ToyWriter()
