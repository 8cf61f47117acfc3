"""Which micro-batches a target contains already, by the cut that it has reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.lake.cut_batches import EARLIEST, BatchCuts, is_done, same_cut
from tests.spark.files import FileTopic
from tests.unit.spark.readers import drain, numbers, stream_of


def cut(position: int, epoch: int = 0) -> dict[str, Any]:
    return {"v": 1, "topics": {"orders": {"epoch": epoch, "segs": {"0": position}}}}


def test_a_batch_is_new_behind_the_cut_and_done_at_it() -> None:
    assert not is_done(None, BatchCuts(None, cut(0)), "it")
    assert is_done(cut(0), BatchCuts(None, cut(0)), "it")
    assert not is_done(cut(0), BatchCuts(cut(0), cut(9)), "it")
    assert is_done(cut(9), BatchCuts(cut(0), cut(9)), "it")


def test_the_first_batch_of_a_pipeline_stores_its_start_and_has_no_rows(tmp_path: Path) -> None:
    topic = FileTopic(tmp_path, "orders").create()
    topic.send(numbers(0, 9))
    reader = stream_of(topic, startingOffsets=json.dumps(EARLIEST))
    asked = reader.initialOffset()
    start = reader.latestOffset(asked, ReadAllAvailable())
    assert list(reader.partitions(asked, start)) == []
    assert same_cut(start, cut(0))
    assert drain(reader, start)[0] == list(range(9))


def test_the_epoch_of_a_cut_does_not_matter() -> None:
    assert same_cut(cut(3, epoch=1), cut(3, epoch=2))
    assert not same_cut(cut(3), cut(4))
    assert not same_cut(None, cut(4))


@pytest.mark.parametrize("reached", [None, cut(2), cut(20)])
def test_a_batch_of_another_state_is_refused(reached: dict[str, Any] | None) -> None:
    with pytest.raises(PipelineError, match="delete the checkpoint directory"):
        is_done(reached, BatchCuts(cut(5), cut(9)), "the archive")
