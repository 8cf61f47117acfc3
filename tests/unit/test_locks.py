"""Locks on files, and holders that no longer count: real processes, stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch import locks
from anabranch.errors import HeldError

HOLD = """
import sys, time
from pathlib import Path
from anabranch import locks
locks.take(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""

Hold = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "LOCK"


@pytest.fixture
def hold(file: Path) -> Iterator[Hold]:
    """Start a process that holds the lock under a name."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(file), name], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_held_lock_is_refused_with_the_name_of_its_holder(file: Path, hold: Hold) -> None:
    child = hold("broker 1/7")
    with pytest.raises(HeldError, match=f"in use by process {child.pid} \\(broker 1/7\\)") as refused:
        locks.take(file)
    assert refused.value.holder == "broker 1/7"
    assert child.poll() is None


def test_a_stopped_holder_is_killed_by_its_name(file: Path, hold: Hold) -> None:
    child = hold("broker 1/7")
    os.kill(child.pid, signal.SIGSTOP)
    fd = locks.take(file, "broker 2/8", fence="broker 1/7")
    assert child.wait(5) == -signal.SIGKILL
    assert locks.read_holder(fd) == (os.getpid(), "broker 2/8")
    os.close(fd)


def test_a_holder_of_another_name_is_left_alone(file: Path, hold: Hold) -> None:
    child = hold("broker 1/8")
    with pytest.raises(HeldError) as refused:
        locks.take(file, fence="broker 1/7")
    assert refused.value.holder == "broker 1/8"
    assert child.poll() is None


def test_taking_a_free_lock_kills_no_process_although_its_file_names_one(file: Path, hold: Hold) -> None:
    child = hold("broker 1/7")
    other = file.with_name("OTHER")
    other.write_text(f"{child.pid} broker 1/7\n")
    os.close(locks.take(other, fence="broker 1/7"))
    assert child.poll() is None


def test_a_process_that_the_kernel_does_not_list_as_holder_is_left_alone(
    file: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_S", 0.05)
    holder, bystander = hold("broker 1/7"), subprocess.Popen(["sleep", "60"])
    try:
        # As if the process that wrote the file had died and another process had its number.
        file.write_text(f"{bystander.pid} broker 1/7\n")
        with pytest.raises(HeldError, match="the kernel does not list"):
            locks.take(file, fence="broker 1/7")
        assert bystander.poll() is None
        assert holder.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_never_kills_itself(file: Path) -> None:
    fd = locks.take(file, "me")
    with pytest.raises(HeldError, match="which is this process"):
        locks.take(file, fence="me")
    os.close(fd)


def test_a_lock_is_free_when_its_holder_has_died(file: Path, hold: Hold) -> None:
    child = hold("broker 1/7")
    child.kill()
    child.wait()
    os.close(locks.take(file))
