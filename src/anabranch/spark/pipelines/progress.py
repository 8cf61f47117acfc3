"""Shows the progress of a pipeline, and runs a streaming query to its end while showing it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from anabranch.spark.decide.pipelines.progress import PipelineProgress
from anabranch.spark.pipelines.failures import PipelineError, reason_of

Show = Callable[[PipelineProgress], None]

LINE_EVERY_S = 5.0
"""The least time between two lines of output that is not a terminal."""

POLL_S = 0.2
STAGES_POLL_S = 0.5

STARTS_MAX = 20
SLOW_WORKER = "Python worker failed to connect back"
"""Part of Spark's error if a Python worker did not start within 10 seconds."""


class Summary(NamedTuple):
    """The result of a run."""

    rows: int
    """Rows that this run processed."""
    seconds: float


def silent(progress: PipelineProgress) -> None:
    """Show nothing.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        report = pipelines.verify(spark, orders, show=pipelines.silent)
    """


@contextmanager
def shown(about: str) -> Iterator[Show]:
    """Show progress on standard error: in place on a terminal, otherwise as lines.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        with pipelines.shown("archive") as show:
            pipelines.archive(spark, orders, "/lake/orders", show=show)
    """
    if not sys.stderr.isatty():
        yield _lines(about)
        return
    from rich.console import Console
    from rich.status import Status

    with Status(about, console=Console(stderr=True)) as status:
        yield lambda progress: status.update(f"{about}: {progress.text()}")


@contextmanager
def showing(show: Show | None, about: str) -> Iterator[Show]:
    """Use the caller's display, or show the progress on standard error."""
    if show is not None:
        yield show
        return
    with shown(about) as made:
        yield made


def _lines(about: str) -> Show:
    last = time.monotonic()

    def show(progress: PipelineProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            print(f"{about}: {progress.text()}", file=sys.stderr, flush=True)

    return show


def run_stream(writer: Any, show: Show, *, follow: str | None = None) -> Summary:
    """Start a DataStreamWriter, and return when it has processed everything that existed at its start.

    With `follow`, an interval such as `10 seconds`, the query continues until the process is interrupted.
    Raises PipelineError if the query fails.
    """
    began = time.monotonic()
    trigger = {"processingTime": follow} if follow is not None else {"availableNow": True}
    prepared = writer.trigger(**trigger)
    done: dict[int, int] = {}
    patiently(lambda: _run_once(prepared.start(), show, done, began))
    return Summary(sum(done.values()), time.monotonic() - began)


def _run_once(query: Any, show: Show, done: dict[int, int], began: float) -> None:
    """Show the progress of a query until it ends; `done` receives the rows of each batch."""
    try:
        while True:
            ended = not query.isActive
            # An idle query reports the id of its next batch with 0 rows.
            done |= {one.batchId: one.numInputRows for one in query.recentProgress if one.numInputRows}
            show(_progress_of(query.lastProgress, sum(done.values()), time.monotonic() - began))
            if ended:
                break
            time.sleep(POLL_S)
        error = query.exception()
        if error is not None:
            raise PipelineError(reason_of(error)) from error
    finally:
        query.stop()


def patiently(action: Callable[[], object]) -> None:
    """Do something that is safe to repeat, and repeat it if Spark gave up on starting a Python worker.

    Spark waits 10 seconds for each worker, which a busy machine may exceed, and no setting changes that.
    """
    for left in reversed(range(STARTS_MAX)):
        try:
            action()
            return
        except Exception as error:
            if not left or SLOW_WORKER not in str(error):
                raise


def _progress_of(last: Any, rows: int, seconds: float) -> PipelineProgress:
    if last is None:
        return PipelineProgress(rows, seconds, step="starting")
    # Imported late, because it imports Spark.
    from anabranch.spark.lag import lag_of

    behind = lag_of(last)
    return PipelineProgress(rows, seconds, None if behind is None else behind.messages)


@contextmanager
def batch_shown(spark: Any, show: Show, rows: int) -> Iterator[None]:
    """Show the progress of the batch jobs that run inside; `rows` is how many messages they read."""
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
    while not done.wait(STAGES_POLL_S):
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
