"""The audit log: lines, files, limits, and disks that fail."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from anabranch.config.broker import BrokerConfig
from anabranch.errors import InvalidConfigurationError
from anabranch.rights.callers import Caller
from anabranch.security import audit, audit_file
from anabranch.security.audit import AuditEvent, AuditRecords, BufferedAudit
from anabranch.security.audit_file import AuditFile
from anabranch.security.configured import make_audit
from simulation.world.faults import EPOCH_MS, SimClock
from simulation.world.loop import SimLoop

EVENT = AuditEvent("CONNECT", "refused", Caller(method="token"), "10.0.0.1:5", reason="the token expired")


@pytest.fixture
def lines(loop: SimLoop) -> AuditRecords:
    return AuditRecords(SimClock(loop), 3)


class AuditDisk:
    """Takes lines, or fails while it is full."""

    def __init__(self) -> None:
        self.text = b""
        self.is_full = False

    async def append(self, lines: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left")
        self.text += lines

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


async def test_a_line_says_when_where_and_why(lines: AuditRecords) -> None:
    assert json.loads(lines.line_of(EVENT)) == {
        "time_s": EPOCH_MS / 1000,
        "worker": 3,
        "address": "10.0.0.1:5",
        "method": "token",
        "action": "CONNECT",
        "outcome": "refused",
        "reason": "the token expired",
    }


@pytest.mark.parametrize(
    "text", ['a\n{"role":"admin"}', "a\r\nb", "a\u2028b", "\x1b[31m", "\ud800", "x" * 10**6]
)
async def test_a_client_cannot_forge_or_flood_a_line(lines: AuditRecords, text: str) -> None:
    caller = Caller(text, original=text, method=text)
    line = lines.line_of(AuditEvent(text, "refused", caller, text, resource=text, reason=text))
    assert line.count(b"\n") == 1
    assert b"\x1b" not in line
    assert len(line) < 10_000
    assert json.loads(line)["outcome"] == "refused"


async def test_lines_are_written_soon_and_at_the_latest_on_close(lines: AuditRecords) -> None:
    disk = AuditDisk()
    log = BufferedAudit(lines, disk.append)
    log.write(EVENT)
    assert disk.lines == []
    await asyncio.sleep(1)
    assert len(disk.lines) == 1
    log.write(EVENT)
    await log.close()
    assert len(disk.lines) == 2


async def test_a_full_disk_costs_lines_that_are_counted(
    lines: AuditRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = AuditDisk()
    disk.is_full = True
    monkeypatch.setattr(audit, "WAITING_BYTES_MAX", 1000)
    log = BufferedAudit(lines, disk.append)
    for _ in range(100):
        log.write(EVENT)
    await asyncio.sleep(1)
    disk.is_full = False
    log.write(EVENT)
    await asyncio.sleep(1)
    assert [line.get("reason") for line in disk.lines] == ["the token expired", "100 lines lost"]
    await log.close()


def test_a_file_is_private_and_begins_anew_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for number in range(7):
        # Each process has an object of its own.
        AuditFile(path, 100, 2).append_now(b'{"n":%d,"x":"%s"}\n' % (number, b"x" * 60))
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    found = {file.name: [line["n"] for line in read(file)] for file in tmp_path.iterdir()}
    assert found == {"audit.log": [6], "audit.log.1": [4, 5], "audit.log.2": [2, 3]}


def test_a_line_after_half_a_line_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 10**6, 2)

    def write_half(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(audit_file, "write_all", write_half)
        with pytest.raises(OSError, match="no space"):
            file.append_now(b'{"n":1}\n')
    file.append_now(b'{"n":2}\n')
    assert path.read_bytes().splitlines()[-1] == b'{"n":2}'


@pytest.mark.parametrize("setting", ["", ".", "missing/audit.log"])
def test_a_place_that_cannot_hold_the_log_is_refused_at_the_start(
    loop: SimLoop, tmp_path: Path, setting: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match="audit_log"):
        make_audit(BrokerConfig(data=str(tmp_path), audit_log=setting), SimClock(loop), 0)


def test_the_log_can_be_switched_off(loop: SimLoop, tmp_path: Path) -> None:
    audit_log = make_audit(BrokerConfig(data=str(tmp_path), audit_log="off"), SimClock(loop), 0)
    audit_log.write(EVENT)
    assert list(tmp_path.iterdir()) == []
