"""Shows the progress of batch jobs, from the finished tasks that Spark counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anabranch.spark.decide.pipelines.progress import PipelineProgress
from anabranch.spark.pipelines.progress import Show, silent

POLL_S = 0.5


@contextmanager
def batch_shown(spark: Any, show: Show, rows: int) -> Iterator[None]:
    """Show the progress of the jobs that run inside; `rows` is the number of messages that they read."""
    tracker = None if show is silent else _tracker(spark)
    if tracker is None:
        yield
        return
    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(tracker, show, rows, done), daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


def _tracker(spark: Any) -> Any:
    try:
        return spark.sparkContext.statusTracker()
    except Exception:
        # A Spark Connect session has no context; its error class depends on the version.
        return None


def _watch(tracker: Any, show: Show, rows: int, done: threading.Event) -> None:
    began = time.monotonic()
    first: int | None = None
    while not done.wait(POLL_S):
        stages = [tracker.getStageInfo(id_) for id_ in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if not known:
            continue
        # Only the first stage reads messages.
        newest = min(known, key=lambda stage: stage.stageId)
        first = newest.stageId if first is None else first
        share = newest.numCompletedTasks / max(1, newest.numTasks) if newest.stageId == first else 1.0
        step = f"{newest.numCompletedTasks} of {newest.numTasks} tasks of stage {newest.stageId}"
        show(PipelineProgress(int(rows * share), time.monotonic() - began, rows - int(rows * share), step))
