"""The thread that appends and syncs without the interpreter, and the appends through it."""

from __future__ import annotations

import asyncio
import errno
import os
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.ledger.disks.disk import DiskFullError
from anabranch.ledger.disks.quick_appends import QUICK_BYTES_MAX, QuickAppends
from anabranch.speedups import SyncThread, SyncThreadType

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(SyncThread is None, reason="without a compiler the Python form does the work"),
]


def made_thread() -> SyncThreadType:
    assert SyncThread is not None
    return SyncThread()


def outcome(thread: SyncThreadType) -> tuple[int, int]:
    """Wait for the end of the append under way."""
    select.select([thread.fileno()], [], [], 10)
    found = thread.take()
    assert found is not None
    return found


def opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def test_appends_reach_the_file_in_order(tmp_path: Path) -> None:
    thread, fd = made_thread(), opened(tmp_path / "x")
    assert thread.take() is None
    for n in range(50):
        thread.give(fd, b"%d," % n)
        assert outcome(thread) == (len(b"%d," % n), 0)
    thread.close()
    assert (tmp_path / "x").read_bytes() == b"".join(b"%d," % n for n in range(50))


def test_errors_are_reported_with_the_bytes_that_were_written(tmp_path: Path) -> None:
    thread = made_thread()
    thread.give(os.open("/dev/full", os.O_WRONLY), b"data")
    assert outcome(thread) == (0, errno.ENOSPC)
    thread.give(10**6, b"data")
    assert outcome(thread) == (0, errno.EBADF)
    reading, writing = os.pipe()
    thread.give(writing, b"data")
    assert outcome(thread) == (4, errno.EINVAL), "a pipe takes bytes and cannot be synced"
    thread.close()
    os.close(reading)


def test_a_second_append_is_refused_until_the_first_is_taken(tmp_path: Path) -> None:
    thread, fd = made_thread(), opened(tmp_path / "x")
    thread.give(fd, b"first")
    with pytest.raises(RuntimeError, match="under way"):
        thread.give(fd, b"second")
    outcome(thread)
    with pytest.raises(TypeError):
        thread.give(fd, "text")  # type: ignore[arg-type]
    thread.give(fd, b"third")
    thread.close()
    assert (tmp_path / "x").read_bytes() == b"firstthird", "close waits for the append under way"
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.give(fd, b"fourth")


def test_a_forked_process_does_not_wait_for_the_thread_of_its_parent(tmp_path: Path) -> None:
    thread = made_thread()
    thread.give(opened(tmp_path / "x"), b"data")
    outcome(thread)
    child = os.fork()
    if not child:
        thread.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    thread.close()


class ShortThread:
    """Writes a part of each append and reports an error then."""

    def __init__(self, error: int) -> None:
        self._error = error
        self._found: tuple[int, int] | None = None
        self._event = os.eventfd(0)

    def give(self, file: int, data: bytes) -> None:
        self._found = os.write(file, data[:3]), self._error
        os.eventfd_write(self._event, 1)

    def take(self) -> tuple[int, int] | None:
        os.eventfd_read(self._event)
        return self._found

    def fileno(self) -> int:
        return self._event

    def close(self) -> None:
        os.close(self._event)


def appends_to(path: Path, thread: SyncThreadType) -> QuickAppends:
    made = QuickAppends(thread)
    made.follow("x", opened(path))
    return made


async def test_an_append_without_room_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"stored")
    appends = appends_to(path, ShortThread(errno.ENOSPC))
    with pytest.raises(DiskFullError):
        await appends.append([b"no", b"room"])
    assert path.read_bytes() == b"stored"
    appends.close()


async def test_a_failed_sync_is_an_error_of_the_system(tmp_path: Path) -> None:
    appends = appends_to(tmp_path / "x", ShortThread(errno.EIO))
    with pytest.raises(OSError) as raised:
        await appends.append([b"data"])
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, "x")
    assert not isinstance(raised.value, DiskFullError)
    appends.close()


async def test_a_cancelled_append_is_written_and_disturbs_no_other(tmp_path: Path) -> None:
    appends = appends_to(tmp_path / "x", made_thread())
    await appends.append([b"first"])
    waiting = asyncio.ensure_future(appends.append([b"second"]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    appends.close()
    assert (tmp_path / "x").read_bytes() == b"firstsecond"


@pytest.mark.parametrize(("size", "takes"), [(QUICK_BYTES_MAX, True), (QUICK_BYTES_MAX + 1, False)])
def test_only_small_appends_are_taken(size: int, takes: bool, tmp_path: Path) -> None:
    appends = appends_to(tmp_path / "x", made_thread())
    assert appends.takes([b"x", bytes(size - 1)]) is takes
    appends.close()


async def test_the_event_loop_goes_on_during_an_append(tmp_path: Path) -> None:
    appends = appends_to(tmp_path / "x", made_thread())
    turns = 0

    def turn(again: Callable[..., object]) -> None:
        nonlocal turns
        turns += 1
        again(turn, again)

    asyncio.get_running_loop().call_soon(turn, asyncio.get_running_loop().call_soon)
    await appends.append([b"data"])
    assert turns > 1
    appends.close()
