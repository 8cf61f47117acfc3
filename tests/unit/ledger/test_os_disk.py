"""The operating system's files as a disk."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from anabranch import descriptors
from anabranch.errors import AlreadyClosedError, ConflictError
from anabranch.ledger.disks import os_disk
from anabranch.ledger.disks.disk import DiskFullError
from anabranch.ledger.disks.os_disk import OsDisk

pytestmark = pytest.mark.real_time


@pytest.fixture(params=["compiled", "python"])
async def disk(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OsDisk]:
    if request.param == "python":
        monkeypatch.setattr(os_disk, "SyncThread", None)
    made = OsDisk(tmp_path / "data")
    await made.lock()
    yield made
    await made.close()


async def test_appended_buffers_are_read_back(disk: OsDisk) -> None:
    await disk.append([("a/b/x", [b"one", b"two"]), ("y", [b"three"])])
    await disk.append([("a/b/x", [b"four"])], sync=True)
    assert await disk.read("a/b/x", 0, 100) == b"onetwofour"
    assert await disk.read("a/b/x", 3, 3) == b"two"
    assert await disk.read("a/b/x", 50, 3) == b""
    assert await disk.sizes() == {"a/b/x": 10, "y": 5, "LOCK": len(str(os.getpid())) + 1}


async def test_synced_appends_of_all_sizes_follow_each_other(disk: OsDisk) -> None:
    parts = [bytes([n]) * size for n, size in enumerate([1, 300, 100_000, 5, 64 * 1024, 2, 2**20, 9])]
    for file in ("journal/1", "journal/2", "journal/1"):
        for part in parts:
            await disk.append([(file, [part[:1], part[1:]])], sync=True)
    assert await disk.read("journal/1", 0, 10**8) == b"".join(parts + parts)
    assert await disk.read("journal/2", 0, 10**8) == b"".join(parts)


async def test_a_file_that_is_deleted_and_made_again_takes_appends(disk: OsDisk) -> None:
    for text in (b"first", b"second"):
        for _ in range(3):
            await disk.append([("x", [text])], sync=True)
        assert await disk.read("x", 0, 100) == 3 * text
        await disk.delete(["x"])


async def test_more_buffers_than_the_kernel_takes_at_once_are_all_written(disk: OsDisk) -> None:
    buffers = [bytes([n % 251]) * 300 for n in range(3000)]
    await disk.append([("x", buffers)])
    assert await disk.read("x", 0, 10**7) == b"".join(buffers)


async def test_few_descriptors_are_enough_for_many_files(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, open_files_max=2)
    for turn in range(2):
        await disk.append([(f"f{n}", [b"%d" % turn]) for n in range(10)])
    await disk.sync([f"f{n}" for n in range(10)])
    for n in range(10):
        assert await disk.read(f"f{n}", 0, 10) == b"01"
    await disk.close()


async def test_the_files_of_a_large_checkpoint_are_all_synced(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"ledgers/log-{n}/data" for n in range(200)]
    await disk.append([(file, [b"x"]) for file in files])
    synced: list[str] = []
    for call in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, call, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    await disk.sync(files)
    root = tmp_path / "data"
    folders = [root, root / "ledgers", *((root / file).parent for file in files)]
    assert sorted(synced) == sorted(str(path) for path in (*folders, *(root / file for file in files)))
    await disk.append([("ledgers/log-0/data", [b"y"])])
    os.unlink(root / files[7])
    with pytest.raises(FileNotFoundError):
        await disk.sync(files)


async def test_a_replaced_file_has_the_new_content_only(disk: OsDisk) -> None:
    await disk.replace("x", b"a long old content")
    await disk.replace("x", b"new")
    assert await disk.read("x", 0, 100) == b"new"
    assert sorted(await disk.sizes()) == ["LOCK", "x"]


async def test_appends_after_a_replacement_go_to_the_new_file(disk: OsDisk) -> None:
    await disk.append([("x", [b"old"])])
    await disk.sync(["x"])
    await disk.replace("x", b"new")
    await disk.append([("x", [b" and more"])])
    assert await disk.read("x", 0, 100) == b"new and more"


async def test_the_folders_above_the_root_are_made(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "a" / "b" / "c")
    await disk.lock()
    assert (tmp_path / "a" / "b" / "c" / "LOCK").exists()
    await disk.close()


async def test_a_truncated_file_goes_on_at_its_new_end(disk: OsDisk) -> None:
    await disk.append([("x", [b"0123456789"])])
    await disk.truncate("x", 4)
    await disk.append([("x", [b"abc"])])
    assert await disk.read("x", 0, 100) == b"0123abc"


async def test_a_folder_goes_with_its_last_file_and_may_come_again(disk: OsDisk, tmp_path: Path) -> None:
    await disk.append([(file, [b"x"]) for file in ("logs/a/1", "logs/a/2", "journal/1")])
    await disk.delete(["logs/a/1", "journal/1"])
    assert await disk.read("logs/a/2", 0, 10) == b"x"
    await disk.delete(["logs/a/2"])
    assert sorted(path.name for path in (tmp_path / "data").rglob("*")) == ["LOCK", "journal", "logs"]
    await disk.append([("logs/a/3", [b"y"])])
    await disk.sync(["logs/a/3"])
    assert await disk.read("logs/a/3", 0, 10) == b"y"


async def test_a_deleted_file_is_gone_and_may_come_again(disk: OsDisk) -> None:
    await disk.append([("x", [b"old"])])
    await disk.delete(["x", "never there"])
    with pytest.raises(FileNotFoundError):
        await disk.read("x", 0, 10)
    await disk.append([("x", [b"new"])], sync=True)
    assert await disk.read("x", 0, 10) == b"new"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\0b"])
async def test_no_name_leads_out_of_the_root(disk: OsDisk, name: str) -> None:
    with pytest.raises(ValueError, match="below the data directory"):
        await disk.append([(name, [b"x"])])
    with pytest.raises(ValueError, match="below the data directory"):
        await disk.read(name, 0, 1)


async def test_a_second_process_is_told_the_holder_of_the_directory(disk: OsDisk, tmp_path: Path) -> None:
    root = tmp_path / "data"
    second = OsDisk(root)
    with pytest.raises(ConflictError, match=f"{root} is in use by process {os.getpid()}"):
        await second.lock()
    await second.close()


async def test_a_closed_disk_lets_the_next_one_in(tmp_path: Path) -> None:
    for _ in range(2):
        disk = OsDisk(tmp_path)
        await disk.lock()
        await disk.close()
        await disk.close()
        with pytest.raises(AlreadyClosedError):
            await disk.append([("x", [b""])])


async def test_a_deleted_file_gives_its_room_back_at_once(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    await disk.append([("journal/1.log", [b"committed"])], sync=True)
    await disk.append([("ledgers/a/1.data", [b"written behind"])])
    await disk.delete(["journal/1.log", "ledgers/a/1.data"])
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    assert not [path for path in opened if str(tmp_path) in path]
    await disk.close()


def _is_open(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


async def test_without_room_for_all_buffers_no_file_keeps_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(tmp_path)
    await disk.append([("a", [b"old"]), ("b", [b"old"])])

    def half(fd: int, buffers: Sequence[bytes]) -> int:
        data = b"".join(buffers)
        os.write(fd, data[: len(data) // 2])
        if data == b"longer":
            raise OSError(errno.ENOSPC, "no room")
        return os.write(fd, data[len(data) // 2 :])

    monkeypatch.setattr(os_disk, "write_all", half)
    for sync in (False, True):
        with pytest.raises(DiskFullError):
            await disk.append([("a", [b"new"]), ("b", [b"longer"])], sync=sync)
        assert await disk.sizes() == {"a": 3, "b": 3}
    await disk.append([("a", [b"new"])])
    assert await disk.read("a", 0, 10) == b"oldnew"
    await disk.close()


async def test_a_replacement_without_room_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(tmp_path)
    await disk.replace("catalog", b"old")

    def full(draft: Path, data: bytes, make_room: object) -> None:
        draft.write_bytes(data[:1])
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os_disk, "write_draft", full)
    with pytest.raises(DiskFullError):
        await disk.replace("catalog", b"new")
    assert await disk.sizes() == {"catalog": 3}
    assert await disk.read("catalog", 0, 10) == b"old"
    await disk.close()


async def test_the_reserve_takes_room_and_gives_it_back(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    assert await disk.reserve() == 0
    assert await disk.reserve(100_000) == 100_000
    assert os.stat(tmp_path / "reserve").st_blocks * 512 >= 100_000
    assert await disk.reserve(30_000) == 30_000
    await disk.close()
    again = OsDisk(tmp_path)
    assert await again.reserve() == 30_000
    space = await again.space()
    assert 0 < space.free_bytes <= space.total_bytes
    await again.close()


async def test_files_are_opened_once_a_descriptor_is_free(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open
    free = cycle([False, False, True])

    def open_sometimes(path: str, flags: int, mode: int = 0o777) -> int:
        if not next(free):
            raise OSError(errno.EMFILE, "none is free")
        return really_open(path, flags, mode)

    monkeypatch.setattr(descriptors, "RETRY_S", 0.0)
    monkeypatch.setattr(os, "open", open_sometimes)
    await disk.append([("f", [b"one"])], sync=True)
    await disk.replace("g", b"two")
    assert await disk.read("f", 0, 10) + await disk.read("g", 0, 10) == b"onetwo"
