"""Finds the two cuts between which a micro-batch reads, for functions of foreachBatch.

Spark writes the end of a micro-batch into the checkpoint before it calls the function, and a repeated batch
has the same end. Spark does not pass the end to the function, so it is read from the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from anabranch.errors import CorruptDataError
from anabranch.spark.decide.source.offsets import Cut, decode
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.files import Files

CutJson = Mapping[str, Any]

EARLIEST: CutJson = {"v": 1, "topics": {}}
"""Starts at the earliest messages, with a first micro-batch that has no rows and stores the cut."""


class BatchCuts(NamedTuple):
    """The cuts of one micro-batch, as JSON."""

    start: CutJson | None
    """None for the first micro-batch of a checkpoint, which reads nothing."""
    end: CutJson


def batch_cuts(spark: Any, state: str, batch: int) -> BatchCuts:
    """Return the cuts of a micro-batch of the query whose checkpoint is in `state`."""
    files = Files(spark, state)
    return BatchCuts(_offset(files, batch - 1) if batch else None, _offset(files, batch))


def _offset(files: Files, batch: int) -> CutJson:
    lines = files.read_text(f"offsets/{batch}").strip().splitlines()
    # Version, metadata, then one line per source.
    if len(lines) != 3:
        raise CorruptDataError(f"{files.url(f'offsets/{batch}')} is not the offset of one source")
    found: CutJson = json.loads(lines[2])
    return found


def same_cut(one: CutJson | None, other: CutJson | None) -> bool:
    """Whether two cuts have the same positions; the epochs of their layouts do not matter."""
    if one is None or other is None:
        return one is other
    return bool(_positions(one) == _positions(other))


def _positions(value: CutJson) -> Any:
    cut = decode(value)
    return (
        {name: dict(topic.positions) for name, topic in cut.topics.items()} if isinstance(cut, Cut) else cut
    )


def is_done(reached: CutJson | None, cuts: BatchCuts, what: str) -> bool:
    """Whether `what`, which has reached a cut, already contains this batch.

    Raises PipelineError if the cut is neither the start nor the end of the batch: then the checkpoint belongs
    to another state of the target.
    """
    if same_cut(reached, cuts.end):
        return True
    if not same_cut(reached, cuts.start):
        raise PipelineError(
            f"the checkpoint does not belong to the present state of {what}, which may be a restored copy; "
            "delete the checkpoint directory, and the next run continues from the cut of the manifest"
        )
    return False
