"""The files that a load reads, through real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.spark.pipelines.failures import PipelineError, spark_failures
from anabranch.spark.pipelines.source_files import SourceFiles

pytestmark = pytest.mark.timeout(300)


def rows_of(source: SourceFiles) -> list[dict[str, Any]]:
    """Return the rows of the files, each by the names of its columns."""
    rows = [row.asDict() for row in source.rows(sorted(source.stamps())).collect()]
    return sorted(rows, key=lambda row: str(row["n"]))


@pytest.fixture
def by_day(tmp_path: Path) -> Path:
    for number, day in enumerate(("1", "2")):
        directory = tmp_path / "events" / f"day={day}"
        directory.mkdir(parents=True)
        (directory / "a.csv").write_text(f"n\n{number}\n")
    return tmp_path / "events"


@pytest.mark.parametrize("pattern", ["", "/", "/day=*", "/day=*/*.csv", "/day={1,2}/a.csv"])
def test_directories_give_columns_whatever_names_the_files(spark: Any, by_day: Path, pattern: str) -> None:
    expected = [{"n": "0", "day": 1}, {"n": "1", "day": 2}]
    assert rows_of(SourceFiles(spark, f"{by_day}{pattern}", "csv", {})) == expected


def test_a_file_or_a_given_base_path_gives_the_columns_that_it_has(spark: Any, by_day: Path) -> None:
    assert rows_of(SourceFiles(spark, f"{by_day}/day=1/a.csv", "csv", {})) == [{"n": "0"}]
    based = SourceFiles(spark, f"{by_day}/day=1/a.csv", "csv", {"basepath": str(by_day)})
    assert rows_of(based) == [{"n": "0", "day": 1}]


def test_columns_that_only_some_parquet_files_have_are_read(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2], "later": ["x"]}), tmp_path / "b.parquet")
    files = SourceFiles(spark, str(tmp_path), "parquet", {})
    assert rows_of(files) == [{"n": 1, "later": None}, {"n": 2, "later": "x"}]


def test_csv_files_with_other_headers_are_refused_together(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,customer\n1,ann\n")
    (tmp_path / "b.csv").write_text("customer,n\nbob,2\n")
    with pytest.raises(PipelineError, match="CSV header does not conform"), spark_failures():
        rows_of(SourceFiles(spark, str(tmp_path), "csv", {}))
    by_place = rows_of(SourceFiles(spark, str(tmp_path), "csv", {"enforceschema": "true"}))
    assert by_place == [{"n": "1", "customer": "ann"}, {"n": "bob", "customer": "2"}]


def test_csv_files_whose_columns_lack_names_are_read(spark: Any, tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.csv").write_text(f",n,x,x\nindex,{number},y,z\n")
    found = rows_of(SourceFiles(spark, str(tmp_path), "csv", {}))
    assert found == [{"_c0": "index", "n": str(n), "x2": "y", "x3": "z"} for n in (1, 2)]


def test_files_have_the_order_of_their_names(spark: Any, tmp_path: Path) -> None:
    names = ["100% sure", "a b", "a!b", "a+b", "a1b", "mai", "m\u00e4rz", "z", "\u00e9"]
    for name in names:
        (tmp_path / f"{name}.csv").write_text(f"n\n{name}\n")
    found = SourceFiles(spark, str(tmp_path), "csv", {}).new_rows({})
    assert found is not None
    assert [row.n for row in found.frame.orderBy(*found.place).collect()] == names
