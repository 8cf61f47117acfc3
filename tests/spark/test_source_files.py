"""The files that a load reads, through real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from anabranch.spark.pipelines.failures import PipelineError, spark_failures
from anabranch.spark.pipelines.loading.source_files import SourceFiles

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


@pytest.mark.parametrize(
    "headers", [("x0,x1,n", "x1,x0,n"), ("_c0,n", "n,_c0"), ("n,,x", "n,x,"), ("n,x,x", "n,y,y")]
)
def test_headers_with_names_that_spark_could_have_made_are_compared(
    spark: Any, tmp_path: Path, headers: tuple[str, str]
) -> None:
    row = ",".join(str(at) for at in range(headers[0].count(",") + 1))
    for number, header in enumerate(headers):
        (tmp_path / f"{number}.csv").write_text(f"{header}\n{row}\n")
    source = SourceFiles(spark, str(tmp_path), "csv", {})
    with pytest.raises(PipelineError, match=r"1\.csv has another header line than .*0\.csv"):
        rows_of(source)
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text(f"{headers[0]}\n{row}\n")
    (tmp_path / "empty.csv").touch()
    assert len(rows_of(source)) == 2


def test_csv_files_without_header_lines_are_read_by_place(spark: Any, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text(f"{number},x\n")
    rows = SourceFiles(spark, str(tmp_path), "csv", {"Header": "false"}).rows(
        [str(tmp_path / f"{number}.csv") for number in range(2)]
    )
    assert sorted(tuple(row) for row in rows.collect()) == [("0", "x"), ("1", "x")]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_a_column_that_is_called_as_spark_calls_bad_rows_is_read(
    spark: Any, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "a.json").write_text('{"n": 1, "_corrupt_record": {"x": 1}}\n')
    (tmp_path / "a.csv").write_text("n,_corrupt_record\n1,real\n")
    for kind, value in (("json", Row(x=1)), ("csv", "real")):
        source = SourceFiles(spark, str(tmp_path / f"a.{kind}"), kind, {"mode": mode})
        assert [row["_corrupt_record"] for row in rows_of(source)] == [value]


def test_bad_rows_of_json_have_a_column_that_no_row_has(spark: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"n": 1}\nno JSON\n')
    source = SourceFiles(spark, str(tmp_path), "json", {"mode": "permissive"})
    assert rows_of(source) == [
        {"n": 1, "_corrupt_record": None},
        {"n": None, "_corrupt_record": "no JSON"},
    ]
    (tmp_path / "good.json").write_text('{"n": 2, "_corrupt_record": "real"}\n')
    with pytest.raises(PipelineError, match="columnNameOfCorruptRecord"):
        rows_of(source)
    named = {"mode": "permissive", "columnNameOfCorruptRecord": "bad"}
    assert {"n": 2, "_corrupt_record": "real", "bad": None} in rows_of(
        SourceFiles(spark, str(tmp_path), "json", named)
    )


@pytest.mark.parametrize(
    "kinds",
    [
        (pa.int32(), pa.string()),
        (pa.int32(), pa.int64()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int64())])),
    ],
)
def test_parquet_files_with_other_types_are_refused_by_column(
    spark: Any, tmp_path: Path, kinds: tuple[Any, Any]
) -> None:
    for number, kind in enumerate(kinds):
        column = pa.array([None], kind)
        pq.write_table(pa.table({"n": [1], "column": column}), tmp_path / f"{number}.parquet")
    with pytest.raises(PipelineError, match=r"column column is .* in .*0\.parquet and .* in .*1\.parquet"):
        rows_of(SourceFiles(spark, str(tmp_path), "parquet", {}))
    # A run for each type can read them.
    assert len(rows_of(SourceFiles(spark, str(tmp_path / "1*"), "parquet", {}))) == 1


def test_files_have_the_order_of_their_names(spark: Any, tmp_path: Path) -> None:
    names = ["100% sure", "a b", "a!b", "a+b", "a1b", "mai", "m\u00e4rz", "z", "\u00e9"]
    for name in names:
        (tmp_path / f"{name}.csv").write_text(f"n\n{name}\n")
    found = SourceFiles(spark, str(tmp_path), "csv", {}).new_rows({})
    assert found is not None
    assert [row.n for row in found.frame.orderBy(*found.place).collect()] == names
