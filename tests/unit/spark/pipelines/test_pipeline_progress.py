"""The progress and the failures of pipelines as text, and the formats of files."""

from __future__ import annotations

import pytest

from anabranch.spark.decide.pipelines.progress import PipelineProgress
from anabranch.spark.pipelines import progress
from anabranch.spark.pipelines.failures import PipelineError, reason_of
from anabranch.spark.pipelines.progress import SLOW_WORKER, STARTS_MAX, patiently


def test_rate_waiting_and_remaining_time_are_shown() -> None:
    assert (
        PipelineProgress(3000, 2.0, 1500).text() == "3,000 rows, 1,500 rows/s, 1,500 waiting, about 1 s left"
    )
    assert PipelineProgress(0, 0.0, step="starting").text() == "0 rows, 0 rows/s, starting"


def test_the_reason_of_a_failed_job_is_a_sentence() -> None:
    name = "anabranch.spark.pipelines.failures.PipelineError"
    ours = f"x\n {name}: the archive is older\n\nJVM stacktrace:\n\tat x"
    assert reason_of(RuntimeError(ours)) == "the archive is older"
    assert reason_of(RuntimeError("[FAILED] no disk\n\tat a.b\n\tat c.d")) == "[FAILED] no disk"


def test_the_reason_that_java_gives_has_the_first_and_the_last_cause() -> None:
    java = (
        "An error occurred while calling o7.parquet.\n: org.x.SparkException: [READ] Cannot read a.csv.\n"
        "\tat a.b\nCaused by: java.lang.RuntimeException: between\n\tat c.d\n"
        "Caused by: org.x.Malformed$Row: [ROW] Malformed row: 3,4\n\tat e.f\n\t... 3 more"
    )
    assert reason_of(RuntimeError(java)) == "[READ] Cannot read a.csv. [ROW] Malformed row: 3,4"
    alone = "An error occurred while calling o7.load.\n: java.io.IOException: no disk\n\tat a.b"
    assert reason_of(RuntimeError(alone)) == "no disk"


def test_a_slow_start_of_a_worker_is_repeated_and_other_failures_are_not() -> None:
    calls = []

    def slow(times: int, text: str) -> None:
        calls.append(text)
        if len(calls) <= times:
            raise PipelineError(text)

    patiently(lambda: slow(2, f"[X] {SLOW_WORKER}."))
    assert len(calls) == 3
    calls.clear()
    with pytest.raises(PipelineError, match="disk"):
        patiently(lambda: slow(2, "no disk"))
    assert len(calls) == 1
    calls.clear()
    with pytest.raises(PipelineError, match="connect back"):
        patiently(lambda: slow(99, SLOW_WORKER))
    assert len(calls) == STARTS_MAX


@pytest.mark.parametrize(("every_s", "lines"), [(0.0, 2), (3600.0, 0)])
def test_progress_is_printed_in_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, every_s: float, lines: int
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", every_s)
    with progress.shown("archive") as show:
        show(PipelineProgress(10, 1.0))
        show(PipelineProgress(20, 1.0))
    printed = capsys.readouterr().err.splitlines()
    assert printed == ["archive: 10 rows, 10 rows/s", "archive: 20 rows, 20 rows/s"][:lines]
