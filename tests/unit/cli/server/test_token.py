"""`anabranch token`: keys and tokens in private files, and tokens that are shown."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest

from anabranch.cli.main import main
from anabranch.clock import SystemClock
from tests.harness.gates import TestedGate


def run(*words: str | Path) -> int:
    return main(["token", *map(str, words)])


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the command, which a test sets."""
    clock = SimpleNamespace(s=1_800_000_000.0)
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: int(clock.s * 1000))
    return clock


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.key"
    assert run("create-secret-key", "--output", file) == 0
    return file


@pytest.mark.parametrize(("algorithm", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_key_is_private_and_long_enough(tmp_path: Path, algorithm: str, size: int) -> None:
    file = tmp_path / "secret.key"
    assert run("create-secret-key", "--algorithm", algorithm, "--output", file) == 0
    assert (mode_of(file), file.stat().st_size) == (0o600, size)


def test_no_file_is_overwritten(secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = secret.read_bytes()
    assert run("create-secret-key", "--output", secret) == 1
    assert "exists already" in capsys.readouterr().err
    assert secret.read_bytes() == before


async def test_a_token_of_a_secret_proves_its_role(tmp_path: Path, secret: Path, gate: TestedGate) -> None:
    file = tmp_path / "alice.token"
    words: list[str | Path] = ["create", "--secret-key", secret, "--subject", "alice", "--audience", "broker"]
    assert run(*words, "--output", file) == 0
    assert mode_of(file) == 0o600
    gate.use(token_secret_key=str(secret), token_audience="broker")
    assert (await gate.token(file.read_text())).role == "alice"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512"])
@pytest.mark.parametrize("form", ["der", "pem"])
async def test_a_token_of_a_key_pair_proves_its_role(
    tmp_path: Path, gate: TestedGate, algorithm: str, form: str
) -> None:
    private, public, file = tmp_path / "private.key", tmp_path / "public.key", tmp_path / "token"
    outputs: list[str | Path] = ["--output-private-key", private, "--output-public-key", public]
    assert run("create-key-pair", "--algorithm", algorithm, "--format", form, *outputs) == 0
    assert mode_of(private) == 0o600
    words: list[str | Path] = ["create", "--private-key", f"file://{private}", "--subject", "alice"]
    words += ["--output", file]
    assert run(*words, "--expires", "1y", "--key-id", "k1") == 0
    assert jwt.get_unverified_header(file.read_text().strip())["alg"] == algorithm
    gate.use(token_public_key=f"file://{public}", token_public_algorithm=algorithm)
    assert (await gate.token(file.read_text())).role == "alice"


def show(
    secret: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, dict[str, Any]]:
    """Make a token and show it with its key, as JSON."""
    assert run("create", "--secret-key", secret, "--subject", "alice", *words) == 0
    made = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(made.encode())))
    code = run("show", "--secret-key", secret, "--json")
    shown = capsys.readouterr().out
    assert made.strip().rpartition(".")[2] not in shown
    return code, json.loads(shown)


def test_a_token_is_shown_without_its_signature(
    secret: Path,
    now: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, shown = show(secret, ["--expires", "2h", "--issuer", "us"], capsys, monkeypatch)
    assert (code, shown["problem"], shown["signature"]) == (0, "", "checked")
    assert shown["claims"] == {"sub": "alice", "iat": int(now.s), "exp": int(now.s) + 7200, "iss": "us"}
    assert shown["header"]["alg"] == "HS256"


def test_a_token_that_is_not_valid_is_shown_with_the_reason(
    tmp_path: Path, secret: Path, now: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "alice.token", tmp_path / "other.key"
    run("create", "--secret-key", secret, "--subject", "alice", "--expires", "1h", "--output", file)
    assert run("show", "--file", file) == 0
    assert "not checked" in capsys.readouterr().out
    run("create-secret-key", "--output", other)
    assert run("show", "--file", file, "--secret-key", other) == 1
    assert "valid      no: the token is not valid" in capsys.readouterr().out
    now.s += 3601
    assert run("show", "--file", file, "--secret-key", secret) == 1
    assert "no: the token expired 1 s ago" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--expires", "soon"], "write it as"),
        (["--expires", "0d"], "write it as"),
        (["--algorithm", "RS256"], "fits HS256"),
        (["--algorithm", "none"], "fits HS256"),
    ],
)
def test_wrong_words_are_explained(
    secret: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert run("create", "--secret-key", secret, "--subject", "alice", *words) == 1
    assert text in capsys.readouterr().err


def test_a_role_that_brokers_would_refuse_is_refused(
    secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("create", "--secret-key", secret, "--subject", "a\nb") == 1
    assert "not a valid role" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"short", b"-----BEGIN PUBLIC KEY-----"])
def test_keys_that_cannot_sign_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    assert run("create", "--secret-key", file, "--subject", "alice") == 1
    assert run("create", "--private-key", file, "--subject", "alice") == 1
    assert run("create", "--secret-key", "data:;base64,AAAA", "--subject", "alice") == 1
    assert run("create", "--secret-key", tmp_path / "missing", "--subject", "alice") == 1
    assert "short" not in capsys.readouterr().err
