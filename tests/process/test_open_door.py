"""A broker that other machines reach, without authentication: only if its operator allowed it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulation.harness.process import BrokerProcess


def refused(data: Path, *words: str) -> str:
    """The error of `anabranch serve`, which must end by itself and leave nothing behind."""
    command = [sys.executable, "-m", "anabranch.cli.main", "serve", "--data", str(data), "--port", "0"]
    ended = subprocess.run(
        [*command, "--http-port", "0", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert not ended.stdout
    assert not data.exists()
    return ended.stderr


def test_an_open_address_without_authentication_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('bindAddress = "0.0.0.0"\n')
    for words in (("--host", "0.0.0.0"), ("--host", "::", "--workers", "2"), ("--config", str(file))):
        said = refused(tmp_path / "data", *words)
        for option in ("authenticationEnabled", "127.0.0.1", "--allow-unauthenticated", "docs/security.md"):
            assert option in said
        assert "Traceback" not in said


@pytest.mark.parametrize("workers", [1, 2])
def test_the_operator_may_allow_it(make_broker: Callable[..., BrokerProcess], workers: int) -> None:
    broker = make_broker(host="0.0.0.0", allow_unauthenticated="true", workers=workers).start()
    assert broker.stop() == 0
