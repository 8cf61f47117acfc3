"""The data directory: its lock, its format version and its permissions."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch import locks
from anabranch.data.directory import (
    FORMAT_FILE,
    FORMAT_VERSION,
    STAGING,
    format_text,
    open_data,
    parse_format,
)
from anabranch.errors import ConflictError, HeldError, UnsupportedFormatError


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_and_close(root: Path) -> None:
    os.close(open_data(str(root)))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_directory_and_its_files_are_closed_to_other_users(tmp_path: Path) -> None:
    root = tmp_path / "data"
    open_and_close(root)
    assert mode(root) == 0o700
    assert {mode(file) for file in root.iterdir()} == {0o600}


def test_data_directory_that_was_open_to_other_users_is_closed(tmp_path: Path) -> None:
    root = tmp_path / "data"
    open_and_close(root)
    root.chmod(0o755)
    open_and_close(root)
    assert mode(root) == 0o700


def test_directory_of_another_program_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("")
    tmp_path.chmod(0o755)
    open_and_close(tmp_path)
    assert mode(tmp_path) == 0o755


def test_lock_that_is_a_symbolic_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    target = tmp_path / "target"
    target.write_text("precious")
    (root / "LOCK").symlink_to(target)
    with pytest.raises(ConflictError, match="symbolic link"):
        open_data(str(root))
    assert target.read_text() == "precious"


def test_second_process_does_not_get_the_directory(tmp_path: Path) -> None:
    lock = open_data(str(tmp_path))
    with pytest.raises(HeldError):
        open_data(str(tmp_path))
    os.close(lock)


def test_directory_of_a_newer_format_is_refused_and_its_lock_is_released(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    newer = format_text(FORMAT_VERSION + 1)
    (tmp_path / FORMAT_FILE).write_bytes(newer)
    for _ in range(2):
        with pytest.raises(UnsupportedFormatError, match=f"format {FORMAT_VERSION + 1}"):
            open_data(str(tmp_path))
    assert (tmp_path / FORMAT_FILE).read_bytes() == newer


def test_format_file_with_any_flipped_bit_is_written_again(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    right = format_text(FORMAT_VERSION)
    for bit in range(8 * len(right)):
        damaged = bytearray(right)
        damaged[bit // 8] ^= 1 << bit % 8
        assert parse_format(bytes(damaged)) is None
    (tmp_path / FORMAT_FILE).write_bytes(damaged)
    open_and_close(tmp_path)
    assert (tmp_path / FORMAT_FILE).read_bytes() == right


def test_missing_or_empty_format_file_is_written_again(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    (tmp_path / FORMAT_FILE).write_bytes(b"")
    open_and_close(tmp_path)
    (tmp_path / FORMAT_FILE).unlink()
    open_and_close(tmp_path)
    assert (tmp_path / FORMAT_FILE).read_bytes() == format_text(FORMAT_VERSION)


def test_links_of_a_killed_backup_are_removed_and_those_of_a_running_one_stay(tmp_path: Path) -> None:
    staging = tmp_path / STAGING
    staging.mkdir()
    (staging / "link").write_text("")
    running = locks.take(staging / "LOCK")
    open_and_close(tmp_path)
    assert (staging / "link").exists()
    os.close(running)
    open_and_close(tmp_path)
    assert not staging.exists()
