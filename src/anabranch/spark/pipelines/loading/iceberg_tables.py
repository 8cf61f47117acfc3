"""Reads the rows of an Iceberg table for a load, through pyiceberg.

The driver chooses a metadata file and a snapshot, and plans which files to read. Each task reads some of
these files by the same metadata file, so all rows are of one snapshot even if the table changes in the
meantime.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from anabranch.errors import AnabranchError, InvalidConfigurationError
from anabranch.spark.decide.pipelines.iceberg_scans import (
    TableSnapshot,
    appended_since,
    newest_metadata,
    share_files,
)
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.loading.source_files import NewRows

CATALOG = "catalog"
SNAPSHOT = "snapshot-id"
PASSED = "pyiceberg."
"""Prefix of the options that are passed to pyiceberg as properties of its catalogs and file systems."""

TASK_BYTES = 64 * 2**20
"""A task reads small files up to this size in all, because starting one costs as much as reading them."""


@dataclass(frozen=True)
class IcebergTable:
    """A table, given by its directory, its metadata file, or its name in a catalog."""

    spark: Any
    path: str
    read_options: Mapping[str, str]

    def new_rows(self, known: Mapping[str, Sequence[int]]) -> NewRows | None:
        """Return the rows of the present snapshot, or those that were appended since the loaded one.

        `known` maps the id of the table to the snapshot that was loaded last.
        """
        with _failures(self.path):
            table = self._open()
            snapshot = self._snapshot(table)
            if snapshot is None:
                return None
            uuid = str(table.metadata.table_uuid)
            if known and uuid not in known:
                raise PipelineError(
                    f"{self.path} is not the table that was loaded before; load it with another --state "
                    "directory"
                )
            loaded = known[uuid][0] if known else None
            if loaded == snapshot.snapshot_id:
                return None
            tasks = _planned(table, snapshot, loaded)
            rows = self._rows(table, _schema_of(table, snapshot), tasks)
            return NewRows({uuid: [snapshot.snapshot_id]}, len(tasks), rows, ())

    def _open(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.table import StaticTable
        except ImportError:
            raise InvalidConfigurationError(
                "Iceberg tables need pyiceberg; install it with `pip install 'anabranch[iceberg]'`"
            ) from None
        properties = {
            name.removeprefix(PASSED): text
            for name, text in self.read_options.items()
            if name.startswith(PASSED)
        }
        catalog = self.read_options.get(CATALOG)
        if catalog is not None:
            return load_catalog(catalog, **properties).load_table(self.path)
        return StaticTable.from_metadata(self._metadata_file(), properties)

    def _metadata_file(self) -> str:
        files = Files(self.spark, self.path)
        if not files.is_directory():
            return files.url()
        hint = "metadata/version-hint.text"
        text = files.read_text(hint).strip() if files.exists(hint) else None
        found = newest_metadata(files.names("metadata"), text)
        if found is None:
            raise InvalidConfigurationError(
                f"{self.path} is not an Iceberg table: it has no metadata/*.metadata.json"
            )
        return files.url(f"metadata/{found}")

    def _snapshot(self, table: Any) -> Any:
        wanted = self.read_options.get(SNAPSHOT)
        if wanted is None:
            return table.current_snapshot()
        found = table.snapshot_by_id(int(wanted)) if wanted.isdecimal() else None
        if found is None:
            known = ", ".join(str(one.snapshot_id) for one in table.snapshots())
            raise InvalidConfigurationError(f"the table has no snapshot {wanted}; it has {known or 'none'}")
        return found

    def _rows(self, table: Any, schema: Any, tasks: Sequence[Any]) -> Any:
        """Return a DataFrame whose partitions have the rows of the files, in order."""
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = from_arrow_schema(_arrow_schema(schema))
        if not tasks:
            return self.spark.createDataFrame([], columns)
        shares = share_files([task.file.file_size_in_bytes for task in tasks], TASK_BYTES)
        parts = [(bytearray(pickle.dumps([tasks[at] for at in share])),) for share in shares]
        planned = self.spark.createDataFrame(
            self.spark.sparkContext.parallelize(parts, len(parts)), "tasks binary"
        )
        read = _reading(table.metadata_location, dict(table.io.properties), schema, columns)
        return planned.mapInArrow(read, columns)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Turn any error of pyiceberg or of a file system, which have many classes, into a PipelineError."""
    try:
        yield
    except AnabranchError:
        raise
    except Exception as error:
        raise PipelineError(f"cannot read the Iceberg table {path}: {error}") from error


def _schema_of(table: Any, snapshot: Any) -> Any:
    """Return the columns of a snapshot: the table's for the present one, otherwise those of its time."""
    current = table.current_snapshot()
    if current is not None and current.snapshot_id == snapshot.snapshot_id:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def _planned(table: Any, snapshot: Any, loaded: int | None) -> list[Any]:
    """Return the files with wanted rows, and their deletes, in the order in which they were added."""
    from pyiceberg.table.snapshots import ancestors_of

    if loaded is None:
        manifests = snapshot.manifests(table.io)
        tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    else:
        history = [*ancestors_of(snapshot, table.metadata)][::-1]
        steps = [TableSnapshot(one.snapshot_id, one.summary.operation.value) for one in history]
        appended = set(appended_since(steps, loaded))
        if not appended:
            return []
        manifests = [
            manifest
            for one in history
            if one.snapshot_id in appended
            for manifest in one.manifests(table.io)
            if manifest.added_snapshot_id in appended
        ]
        tasks = table.incremental_append_scan(
            from_snapshot_id_exclusive=loaded, to_snapshot_id_inclusive=snapshot.snapshot_id
        ).plan_files()
    sequence = {
        entry.data_file.file_path: entry.sequence_number
        for manifest in {one.manifest_path: one for one in manifests}.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    return sorted(tasks, key=lambda task: (sequence.get(task.file.file_path) or 0, task.file.file_path))


def _arrow_schema(schema: Any) -> Any:
    """Return the columns as an Arrow schema. UUIDs become text, because Spark has no type for them."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    found = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([field.with_type(pa.string()) if _is_uuid(field.type) else field for field in found])


def _is_uuid(kind: Any) -> bool:
    return getattr(kind, "extension_name", None) == "arrow.uuid"


def _converted(values: Any, kind: Any) -> Any:
    """Return a column with the type that Spark expects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_uuid(values.type):
        return pc.cast(values, kind)
    return pa.array([None if one is None else str(one) for one in values.to_pylist()], kind)


def _reading(location: str, properties: dict[str, str], schema: Any, columns: Any) -> Callable[..., Any]:
    """Return the function that tasks run: it turns pickled plans into Arrow batches."""

    def read(plans: Iterator[Any]) -> Iterator[Any]:
        for plan in plans:
            for pickled in plan.column("tasks"):
                for task in pickle.loads(pickled.as_py()):
                    yield from _batches(location, properties, schema, columns, task)

    return read


def _batches(
    location: str, properties: dict[str, str], schema: Any, columns: Any, task: Any
) -> Iterator[Any]:
    """Yield the rows of one file, all of which are in memory at the same time."""
    import pyarrow as pa
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(columns, timezone="UTC")
    with _failures(task.file.file_path):
        table = _opened(location, tuple(sorted(properties.items())))
        scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
        for batch in scan.to_record_batches([task]):
            arrays = [_converted(batch.column(at), field.type) for at, field in enumerate(wanted)]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


@lru_cache(maxsize=4)
def _opened(location: str, properties: tuple[tuple[str, str], ...]) -> Any:
    """Open a table in a task. A worker that Spark reuses does not read the metadata file again."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(location, dict(properties))
