"""Iceberg tables for tests, made by pyiceberg in a catalog of one directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.typedef import Record

NAME = "tests.events"

COLUMNS = pa.schema([("key", pa.string()), ("value", pa.int32())])


def rows(numbers: Sequence[int], keys: int, column: str = "value") -> Any:
    """Return rows whose keys take turns."""
    names = pa.array([f"key-{n % keys}" for n in numbers], pa.string())
    return pa.table({"key": names, column: pa.array(numbers, pa.int32())})


def catalog_properties(root: Path) -> dict[str, str]:
    return {"uri": f"sqlite:///{root}/catalog.db", "warehouse": root.as_uri()}


def make_table(root: Path, columns: Any = COLUMNS) -> Any:
    """Create the table in the catalog of a directory, which is made now."""
    root.mkdir(parents=True)
    catalog = SqlCatalog("local", **catalog_properties(root))
    catalog.create_namespace("tests")
    return catalog.create_table(NAME, schema=columns, location=f"{root}/events")


class DeleteManifestWriter(ManifestWriterV2):  # type: ignore[misc]
    """Writes a manifest of files with deleted positions, which pyiceberg reads and does not write."""

    def content(self) -> Any:
        return ManifestContent.DELETES


def delete_positions(table: Any, data_file: str, positions: Sequence[int], content: Any = None) -> None:
    """Delete rows by a file of positions, as engines do that merge on read."""
    path = f"{table.location()}/data/deletes-{len(table.snapshots())}.parquet"
    columns = {"file_path": [data_file] * len(positions), "pos": pa.array(positions, pa.int64())}
    pq.write_table(pa.table(columns), path.removeprefix("file://"))
    deletes = DataFile.from_args(
        content=content or DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        spec_id=0,
    )
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
        change.new_manifest_writer = lambda spec: DeleteManifestWriter(
            spec, change.schema(), change.new_manifest_output(), change.snapshot_id, "deflate"
        )
        change.append_data_file(deletes)
    table.refresh()
