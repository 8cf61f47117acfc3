"""`load` of Iceberg tables into a topic of a real broker: snapshots, changed columns, deletes, partitions."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimeType, UUIDType

import anabranch
from anabranch.errors import AnabranchError, InvalidConfigurationError
from anabranch.spark import pipelines
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.service import close_sessions
from simulation.harness.process import BrokerProcess
from tests.harness.iceberg_tables import NAME, catalog_properties, delete_positions, make_table, rows
from tests.harness.stored_messages import messages_by_key, numbers_by_key

pytestmark = pytest.mark.timeout(900)

KEYS = 5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("iceberg") / "data"
    with BrokerProcess(data, {"auto_scale.enabled": "false"}) as process:
        yield process
        close_sessions()


@pytest.fixture
def topic(broker: BrokerProcess) -> Any:
    return pipelines.TopicPlace(f"iceberg-{uuid.uuid4().hex}", broker.url)


@pytest.fixture
def options(tmp_path: Path) -> pipelines.LoadOptions:
    return pipelines.LoadOptions("iceberg", key="key", value="value", state=str(tmp_path / "state"))


def load(spark: Any, source: Any, topic: Any, options: pipelines.LoadOptions) -> tuple[int, int]:
    done = pipelines.load(spark, str(source), topic, options, pipelines.silent)
    return done.rows, done.files


def received(topic: Any) -> dict[str, list[int]]:
    with anabranch.Client(topic.url) as client:
        return numbers_by_key(client, topic.name)


def values(topic: Any) -> dict[str, list[Any]]:
    with anabranch.Client(topic.url) as client:
        found = messages_by_key(client, topic.name)
    return {key: [json.loads(message.data) for message in messages] for key, messages in found.items()}


def expected(numbers: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for n in numbers:
        found[f"key-{n % KEYS}"].append(n)
    return dict(found)


def test_rows_of_a_table_and_of_later_appends_arrive_once_and_in_order(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "lake")
    source = tmp_path / "lake/events"
    assert load(spark, source, topic, options) == (0, 0)
    # Without an order of its own, a load follows the order in which the table got its files.
    for start in range(0, 60, 20):
        table.append(rows(range(start, start + 20), KEYS))
    small = replace(options, rows_per_commit=15)
    assert load(spark, source, topic, small) == (60, 3)
    assert load(spark, source, topic, small) == (0, 0)
    table.append(rows(range(60, 70), KEYS))
    with table.update_schema() as change:
        change.rename_column("value", "number")
    table.append(rows(range(70, 80), KEYS, "number"))
    assert load(spark, source, topic, replace(small, value="number")) == (20, 2)
    assert received(topic) == expected(range(80))
    # Rows that were sent cannot be taken back.
    table.delete("number < 5")
    with pytest.raises(InvalidConfigurationError, match=r"\(overwrite\) changed or deleted rows after"):
        load(spark, source, topic, replace(small, value="number"))
    assert received(topic) == expected(range(80))


def test_an_interrupted_load_is_completed_with_the_rows_of_its_snapshot(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "lake")
    source, small = tmp_path / "lake/events", replace(options, rows_per_commit=15)
    table.append(rows(range(60), KEYS))

    def interrupt(progress: Any) -> None:
        if progress.step == "step 2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipelines.load(spark, str(source), topic, small, interrupt)
    assert 0 < sum(map(len, received(topic).values())) < 60
    table.delete("value < 5")
    with pytest.raises(InvalidConfigurationError, match="changed or deleted rows after"):
        load(spark, source, topic, small)
    assert received(topic) == expected(range(60))


def test_a_table_has_the_columns_of_today_and_no_deleted_row(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "lake")
    table.append(rows(range(10), 10))
    first = next(iter(table.scan().plan_files())).file
    delete_positions(table, first.file_path, [0, *range(2, 10)])
    with table.update_spec() as spec:
        spec.add_identity("key")
    with table.update_schema() as change:
        change.rename_column("value", "number")
        change.update_column("value", LongType())
        change.add_column("note", StringType())
    later = {"key": ["key-1", "key-7"], "number": pa.array([2**40, 7], pa.int64()), "note": ["x", None]}
    table.append(pa.table(later))
    table.delete("key == 'key-7'")
    whole = replace(options, value=None, order_by=("number",))
    assert load(spark, table.metadata_location, topic, whole)[0] == 2
    assert values(topic) == {
        "key-1": [{"key": "key-1", "number": 1}, {"key": "key-1", "number": 2**40, "note": "x"}]
    }


def test_a_named_snapshot_of_a_table_of_a_catalog_is_loaded_with_its_columns(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "lake")
    table.append(rows(range(10), KEYS))
    old = table.current_snapshot().snapshot_id
    with table.update_schema() as change:
        change.rename_column("value", "number")
    table.overwrite(rows(range(10, 20), KEYS, "number"))
    reached = {f"pyiceberg.{name}": text for name, text in catalog_properties(tmp_path / "lake").items()}
    given = replace(options, read_options={"catalog": "local", "snapshot-id": str(old), **reached})
    assert load(spark, NAME, topic, given) == (10, 1)
    assert received(topic) == expected(range(10))
    unknown = replace(options, read_options={"catalog": "local", "snapshot-id": "7", **reached})
    with pytest.raises(InvalidConfigurationError, match=f"the table has no snapshot 7; it has {old}, "):
        load(spark, NAME, topic, unknown)


def test_columns_of_types_that_spark_lacks_are_text(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    columns = Schema(NestedField(1, "key", UUIDType()), NestedField(2, "at", TimeType()))
    table = make_table(tmp_path / "lake", columns)
    key = uuid.UUID(int=1)
    arrow = schema_to_pyarrow(columns, include_field_ids=False)
    table.append(
        pa.Table.from_arrays([pa.array([key.bytes], pa.uuid()), pa.array([1], pa.time64("us"))], schema=arrow)
    )
    load(spark, table.metadata_location, topic, replace(options, value=None))
    assert values(topic) == {str(key): [{"key": str(key), "at": "00:00:00.000001"}]}


def test_what_is_no_readable_table_is_refused_with_the_reason(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    def refusal(source: Any, given: pipelines.LoadOptions = options) -> str:
        with pytest.raises(AnabranchError) as refused:
            load(spark, source, topic, given)
        return str(refused.value)

    (tmp_path / "empty").mkdir()
    assert "is not an Iceberg table" in refusal(tmp_path / "empty")
    assert "cannot read the Iceberg table" in refusal(tmp_path / "v1.metadata.json")
    assert "cannot read the Iceberg table" in refusal(
        "tests.none", replace(options, read_options={"catalog": "none"})
    )
    table, source = make_table(tmp_path / "lake"), tmp_path / "lake/events"
    table.append(rows(range(10), KEYS))
    file = next(iter(table.scan().plan_files())).file.file_path
    delete_positions(table, file, [0], DataFileContent.EQUALITY_DELETES)
    assert "does not yet support equality deletes" in refusal(source)
    metadata = Path(table.metadata_location)
    metadata.with_name(f"{metadata.name.partition('-')[0]}-other.metadata.json").write_text("{}")
    assert "2 metadata files of version 2" in refusal(source)


def test_a_lost_file_of_a_table_is_named(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "lake")
    table.append(rows(range(10), KEYS))
    file = Path(next(iter(table.scan().plan_files())).file.file_path)
    file.unlink()
    with pytest.raises(PipelineError, match=file.name):
        load(spark, tmp_path / "lake/events", topic, options)


def test_another_table_at_the_same_place_is_refused(
    spark: Any, topic: Any, options: pipelines.LoadOptions, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        make_table(tmp_path / name).append(rows(range(3), KEYS))
    assert load(spark, tmp_path / "one/events", topic, options) == (3, 1)
    with pytest.raises(PipelineError, match="is not the table that was loaded before"):
        load(spark, tmp_path / "two/events", topic, options)
