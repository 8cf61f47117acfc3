"""The secret between real workers: private, rotated while they serve, and part of no backup."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.admin.client import AdminClient
from anabranch.security.peer_secret_file import SECRET_FILE
from simulation.harness.process import BrokerProcess

MakeBroker = Callable[..., BrokerProcess]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anabranch.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def use_both_workers(broker: BrokerProcess, prefix: str) -> None:
    """Make topics at each worker until both lead some; each call may go to the other worker."""
    with AdminClient(broker.http_url) as admin:
        urls = [worker["webServiceUrl"] for worker in admin.call("GET", "/admin/v2/brokers/workers")]
    assert len(urls) == 2
    for number, url in enumerate(urls):
        with AdminClient(url) as admin:
            for n in range(4):
                path = f"/admin/v2/scalable/public/default/{prefix}-{n}"
                if number == 0:
                    admin.call("PUT", path)
                admin.call("POST", f"{path}/split/{0 if number == 0 else 1}")


def test_workers_go_on_while_their_secret_is_rotated(make_broker: MakeBroker, tmp_path: Path) -> None:
    broker = make_broker(workers=2, scalableTopicAutoScaleEnabled="false").start()
    file = broker.data / SECRET_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_text().splitlines()[1]
    use_both_workers(broker, "before")
    rotated = command("secret", "rotate", "--data", str(broker.data), "--overlap", "2")
    assert (rotated.returncode, rotated.stderr) == (0, "")
    assert "the old secret has ended" in rotated.stdout
    after = file.read_text()
    assert before not in after
    assert after.splitlines()[1] not in rotated.stdout
    use_both_workers(broker, "after")
    assert "Traceback" not in broker.log_text
    assert before not in broker.log_text
    broker.stop()
    assert after == file.read_text()


def test_a_backup_has_no_secret_and_a_restored_broker_makes_a_new_one(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    broker = make_broker().start()
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    assert command("backup", str(backup), "--data", str(broker.data)).returncode == 0
    secret = (broker.data / SECRET_FILE).read_text()
    assert not list(backup.rglob("*.secret*"))
    assert command("restore", str(backup), "--data", str(restored)).returncode == 0
    assert not (restored / SECRET_FILE).exists()
    make_broker("restored").start()
    assert (restored / SECRET_FILE).read_text() != secret


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_secret_that_others_may_read_is_refused(make_broker: MakeBroker, mode: int) -> None:
    broker = make_broker().start()
    broker.stop()
    (broker.data / SECRET_FILE).chmod(mode)
    refused = command("serve", "--data", str(broker.data), "--port", "0", "--http-port", "0")
    assert refused.returncode == 1
    assert "delete the file" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    refused = command("secret", "rotate", "--data", str(tmp_path))
    assert refused.returncode == 1
    assert "not a data directory" in refused.stderr
