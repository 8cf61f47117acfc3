from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from anabranch.spark import worker_memory
from anabranch.spark.worker_memory import exempt_modules


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "exempted", set())
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_a_process_that_runs_a_task_exempts_its_modules_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    exempt_modules()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    more = [[] for _ in range(100)]  # type: ignore[var-annotated]
    exempt_modules()
    # Objects that were exempted may have been freed meanwhile.
    assert gc.get_freeze_count() <= frozen, f"{len(more)} later objects are exempted too"


@pytest.mark.usefixtures("collector")
def test_other_processes_keep_their_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    exempt_modules()
    assert gc.get_freeze_count() == 0
