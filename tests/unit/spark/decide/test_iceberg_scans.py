"""Iceberg tables: which metadata file counts, which snapshots a load follows, which files a task reads."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.pipelines.iceberg_scans import (
    TableSnapshot,
    appended_since,
    newest_metadata,
    share_files,
)


def test_the_highest_version_counts_and_a_hint_wins() -> None:
    names = ["00002-a-b.metadata.json", "00010-c.gz.metadata.json", "snap-99.avro", "x-m0.avro"]
    assert newest_metadata(names, None) == "00010-c.gz.metadata.json"
    assert newest_metadata(["v9.metadata.json", "v10.metadata.json"], None) == "v10.metadata.json"
    assert newest_metadata(["v9.metadata.json", "v10.metadata.json"], "9") == "v9.metadata.json"
    assert newest_metadata(["snap-99.avro"], None) is None


def test_two_files_of_the_highest_version_or_a_missing_one_are_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="2 metadata files of version 3; name the one"):
        newest_metadata(["00003-a.metadata.json", "00003-b.metadata.json"], None)
    with pytest.raises(InvalidConfigurationError, match="0 metadata files of version 4"):
        newest_metadata(["v3.metadata.json"], "4")


def history(*operations: str) -> list[TableSnapshot]:
    return [TableSnapshot(number, operation) for number, operation in enumerate(operations)]


def test_only_appends_behind_the_loaded_snapshot_are_new() -> None:
    assert appended_since(history("append", "append", "replace", "append"), 1) == [3]
    assert appended_since(history("append", "delete", "append"), 1) == [2]
    assert appended_since(history("append"), 0) == []


@pytest.mark.parametrize("operation", ["overwrite", "delete"])
def test_rows_that_changed_after_they_were_loaded_are_refused(operation: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=rf"snapshot 1 of the table \({operation}\) changed"):
        appended_since(history("append", operation, "append"), 0)


def test_a_snapshot_that_is_gone_is_refused() -> None:
    with pytest.raises(
        InvalidConfigurationError, match="snapshot 7, which was loaded, is no longer in the history"
    ):
        appended_since(history("append"), 7)


def test_a_task_reads_small_files_together_and_every_file_is_read_once_in_order() -> None:
    assert share_files([], 10) == []
    assert share_files([4, 4, 4, 30, 1], 10) == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert share_files([30, 30], 10) == [range(1), range(1, 2)]
