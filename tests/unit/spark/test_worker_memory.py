from __future__ import annotations

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from anabranch.spark import worker_memory
from anabranch.spark.worker_memory import prepare_worker


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "prepared", {})
    gc.unfreeze()
    yield
    gc.unfreeze()


def run_as(monkeypatch: pytest.MonkeyPatch, program: str | None) -> None:
    """Let this process look as if it ran `python -m PROGRAM`, or a script for None."""
    spec = None if program is None else ModuleSpec(program, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec, raising=False)


@pytest.mark.usefixtures("collector")
def test_a_process_of_spark_exempts_its_modules_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run_as(monkeypatch, "pyspark.daemon")
    prepare_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    more = [[] for _ in range(100)]  # type: ignore[var-annotated]
    prepare_worker()
    # Objects that were exempted may have been freed meanwhile.
    assert gc.get_freeze_count() <= frozen, f"{len(more)} later objects are exempted too"


@pytest.mark.usefixtures("collector")
def test_modules_that_a_task_loaded_are_exempted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run_as(monkeypatch, "pyspark.daemon")
    prepare_worker()
    frozen = gc.get_freeze_count()
    loaded = ModuleType("loaded_by_a_task")
    loaded.__dict__["classes"] = [type(f"Class{number}", (), {}) for number in range(1000)]
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    prepare_worker()
    assert gc.get_freeze_count() > frozen + 1000


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("program", [None, "ipykernel_launcher", "pyspark_job"])
def test_other_processes_keep_their_collector(monkeypatch: pytest.MonkeyPatch, program: str | None) -> None:
    run_as(monkeypatch, program)
    prepare_worker()
    assert gc.get_freeze_count() == 0


FAULTS = """
import resource
from anabranch.spark.worker_memory import reuse_freed_memory

reused = reuse_freed_memory() if {reuse} else True
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    blocks = [bytes(2**20) for _ in range(4)]
    del blocks
print(reused, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, reuse: bool) -> tuple[bool, int]:
    script = FAULTS.format(reuse=reuse)
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    reused, count = found.split()
    return reused == "True", int(count)


def test_a_worker_reuses_the_pages_of_freed_entries() -> None:
    reused, few = faults(reuse=True)
    assert reused is (platform.libc_ver()[0] == "glibc")
    assert not reused or few * 3 < faults(reuse=False)[1]
