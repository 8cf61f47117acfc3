"""The parts of a broker process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.config.broker import BrokerConfig
from anabranch.errors import ConflictError, InvalidConfigurationError, MissingDataError
from anabranch.server import node, supervisor
from anabranch.server.node import cache_of_each_store, check_files, prepare_metadata


@pytest.mark.parametrize(("workers", "found", "expected"), [(1, 0, 64), (4, 0, 16), (1, 8, 8), (4, 2, 16)])
def test_all_stores_together_keep_no_more_in_memory_than_is_set(
    tmp_path: Path, workers: int, found: int, expected: int
) -> None:
    for number in range(found):
        (tmp_path / "stores" / str(number)).mkdir(parents=True)
    config = BrokerConfig(data=str(tmp_path), workers=workers, cache_bytes=64 * 2**20)
    assert cache_of_each_store(config) == expected * 2**20


def test_a_start_is_refused_when_there_are_stores_but_no_metadata(tmp_path: Path) -> None:
    config = BrokerConfig(data=str(tmp_path))
    store = tmp_path / "stores" / "0"
    store.mkdir(parents=True)
    (store / "LOCK").touch()
    prepare_metadata(config)
    (store / "catalog").touch()
    prepare_metadata(config)
    (tmp_path / "metadata.db").unlink()
    prepare_metadata(config)
    for file in tmp_path.glob("metadata*/*"):
        file.unlink()
    (tmp_path / "metadata.db").unlink()
    with pytest.raises(MissingDataError):
        prepare_metadata(config)


@pytest.mark.parametrize("serve", [node.run, supervisor.run])
def test_a_port_in_use_leaves_no_new_data_directory_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[BrokerConfig], int]
) -> None:
    monkeypatch.setattr(node, "set_up_logging", lambda *given: None)
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = BrokerConfig(data=str(data), port=taken.getsockname()[1], http_port=0, workers=2)
        with pytest.raises(ConflictError, match="is in use"):
            serve(config)
    assert not data.exists()


CRYPTOGRAPHY = ("jwt", "cryptography", "bcrypt", "anabranch.security.outside")


def test_a_broker_without_security_imports_no_cryptography(tmp_path: Path) -> None:
    code = (
        "import sys; from anabranch.server import node; from anabranch.config.broker import BrokerConfig; "
        "node.check_files(BrokerConfig(data=sys.argv[1])); "
        f"print([name for name in {CRYPTOGRAPHY!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"authentication": True}, "token_secret_key"),
        ({"audit_log": "missing/audit.log"}, "audit_log"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_process_listens(
    tmp_path: Path, settings: dict[str, object], advice: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=advice):
        check_files(BrokerConfig(data=str(tmp_path), **settings))  # type: ignore[arg-type]
