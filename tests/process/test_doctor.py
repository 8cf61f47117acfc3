"""`anabranch doctor` as a real command, beside a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation.harness.certificates import Authority, tls_settings
from simulation.harness.process import BrokerProcess

MakeBroker = Callable[..., BrokerProcess]


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anabranch.cli.main", "doctor", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def found(*words: str) -> dict[str, Any]:
    """The weak points by name; notes about the user of this test are left out."""
    answer = doctor("--json", *words)
    assert answer.returncode in (0, 1), answer.stderr
    findings = json.loads(answer.stdout)["findings"]
    counted = [finding for finding in findings if finding["severity"] != "note"]
    assert answer.returncode == int(bool(counted))
    return {finding["name"]: finding for finding in counted if finding["name"] != "few-descriptors"}


def test_a_weak_configuration_is_described_for_people_and_programs(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("bindAddress=0.0.0.0\nhttp_allowed_hosts=*\n")
    names = found("--config", str(file))
    assert list(names) == ["no-authentication", "no-tls", "any-host"]
    for finding in names.values():
        assert finding["what"]
        assert finding["why"]
        assert finding["remedy"]
    text = doctor("--config", str(file))
    assert text.returncode == 1
    assert "danger: " in text.stdout
    assert "  why: " in text.stdout
    assert "  do:  " in text.stdout


def test_the_defaults_are_sound() -> None:
    assert found("--data", "/nonexistent") == {}


def test_a_mistake_is_an_error_and_no_weak_point() -> None:
    answer = doctor("--set", "no_such_setting=1")
    assert answer.returncode == 1
    assert "unknown setting" in answer.stderr
    assert "is `anabranch serve` running" in doctor("--url", "http://127.0.0.1:1").stderr
    assert "not an admin URL" in doctor("--url", "localhost").stderr


def test_a_running_broker_is_asked(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    words = ("--data", str(broker.data), "--url", broker.http_url)
    assert list(found(*words)) == ["open-admin"]
    broker.stop()
    careless = make_broker("careless", http_allowed_hosts="*").start()
    assert list(found("--data", str(careless.data), "--url", careless.http_url)) == ["any-host", "open-admin"]


def test_a_careful_broker_tells_a_stranger_nothing(make_broker: MakeBroker, tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(64))
    settings = {"authentication": "true", "authorization": "true", "token_secret_key": str(key)}
    tls = tls_settings(Authority(tmp_path).server())
    broker = make_broker(**settings, **tls).start()
    sets = [word for name, value in {**settings, **tls}.items() for word in ("--set", f"{name}={value}")]
    words = ("--data", str(broker.data), *sets)
    assert found(*words, "--url", broker.https_url) == {}
    assert found(*words, "--url", broker.http_url) == {}
