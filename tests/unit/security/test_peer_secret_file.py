"""The file with the secret between brokers: made once, private, replaced as a whole."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from anabranch.errors import ConflictError, InvalidConfigurationError
from anabranch.security.peer_secret_file import SECRET_FILE, PeerSecretFile


@pytest.fixture
def file(tmp_path: Path) -> PeerSecretFile:
    """A file that was just made."""
    made = PeerSecretFile(tmp_path)
    made.prepare()
    return made


def test_the_first_start_makes_the_file_for_its_user_alone(file: PeerSecretFile, tmp_path: Path) -> None:
    status = (tmp_path / SECRET_FILE).stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert os.listdir(tmp_path) == [SECRET_FILE]
    first = file.load()
    assert len(first.current) == 32
    assert not first.previous
    file.prepare()
    assert file.load() == first
    assert first.current.hex() not in repr(first)


def test_each_directory_has_a_secret_of_its_own(tmp_path: Path) -> None:
    found = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made = PeerSecretFile(tmp_path / name)
        made.prepare()
        found.add(made.load().current)
    assert len(found) == 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o666])
def test_a_file_that_others_may_open_is_refused(file: PeerSecretFile, mode: int) -> None:
    file.file.chmod(mode)
    with pytest.raises(InvalidConfigurationError, match=f"mode {mode:04o}.*delete the file"):
        file.prepare()


def test_a_link_is_refused(file: PeerSecretFile, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    file.file.rename(target)
    file.file.symlink_to(target)
    with pytest.raises(InvalidConfigurationError, match="is a link"):
        file.prepare()
    target.unlink()
    with pytest.raises(InvalidConfigurationError, match="is a link"):
        file.prepare()
    assert not target.exists()


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SECRET_FILE, 0o600)
    with pytest.raises(InvalidConfigurationError, match="not a regular file"):
        PeerSecretFile(tmp_path).load()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"anabranch secret 1\n",
        b"anabranch secret 1\n" + b"0" * 62,
        b"anabranch secret 2\n" + b"0" * 64,
        b"anabranch secret 1\n" + b"0" * 64 + b"\n" + b"0" * 64,
        b"anabranch secret 1\n" + b"0" * 64 + b"\n" + b"0" * 64 + b" soon",
        b"anabranch secret 1\n" + b"x" * 64,
    ],
)
def test_a_damaged_file_is_refused(file: PeerSecretFile, content: bytes) -> None:
    file.file.write_bytes(content)
    with pytest.raises(InvalidConfigurationError, match="is damaged"):
        file.load()


def test_a_failing_disk_is_told_as_a_file_that_cannot_be_used(
    file: PeerSecretFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(InvalidConfigurationError, match="Input/output error"):
        file.load()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match=SECRET_FILE):
        PeerSecretFile(tmp_path).load()


def test_a_rotation_keeps_the_old_secret_for_its_overlap(file: PeerSecretFile, tmp_path: Path) -> None:
    old = file.load()
    made = file.rotate(100.0)
    found = file.load()
    assert found.current == made.current != old.current
    assert found.previous == old.current
    now_s = time.time()
    assert found.accepted(now_s) == [made.current, old.current]
    assert found.accepted(now_s + 101) == [made.current]
    assert stat.S_IMODE(file.file.stat().st_mode) == 0o600
    with pytest.raises(ConflictError, match="under way"):
        file.rotate(100.0)
    file.finish(made)
    assert file.load().accepted(now_s) == [made.current]
    assert old.current.hex() not in file.file.read_text()
    assert os.listdir(tmp_path) == [SECRET_FILE]


def test_the_end_of_a_rotation_leaves_a_later_one_alone(file: PeerSecretFile) -> None:
    first = file.rotate(0.0)
    second = file.rotate(100.0)
    file.finish(first)
    assert file.load().current == second.current
    assert file.load().previous == first.current


def test_a_start_removes_drafts_of_commands_that_were_killed(file: PeerSecretFile, tmp_path: Path) -> None:
    (tmp_path / f"{SECRET_FILE}.0123.new").write_text("half")
    file.prepare()
    assert os.listdir(tmp_path) == [SECRET_FILE]
