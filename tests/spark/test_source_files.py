"""The files that a load reads, through real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
