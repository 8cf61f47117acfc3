"""The command line on each engine."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from anabranch.cli.main import main
from tests.interop.engines import EngineLimit, RunningEngine

# The first run downloads some 250 MB for Pulsar.
pytestmark = pytest.mark.timeout(900)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(engine: RunningEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the engine; exit code, standard output, standard error."""
    monkeypatch.setenv("ANABRANCH_URL", engine.service_url)
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", engine.admin_url)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_topic_is_made_written_read_and_shown(engine: RunningEngine, run: Run) -> None:
    topic = f"topic://public/default/{engine.new_name('shell')}"
    assert run("topic", "create", topic)[0] == 0
    sent = run("produce", topic, "--key", "k{n}", "--value", "v{n}", "--count", "5")
    assert sent[0] == 0, sent
    look = ("consume", topic, "--from", "earliest", "--count", "5", "--timeout", "30", "--json")
    for durable in ((), ("--subscription", "s")):
        code, out, error = run(*look, *durable)
        assert code == 0, error
        found = [json.loads(line) for line in out.splitlines()]
        assert sorted((one["key"], one["value"]) for one in found) == [(f"k{n}", f"v{n}") for n in range(5)]
    code, out, error = run("topic", "show", topic)
    assert code == 0, error
    assert topic in out
    assert run("topic", "split", topic, "0")[0] == 0
    shown = json.loads(run("topic", "show", topic, "--json")[1])
    assert sorted(shown["metadata"]["segments"]) == ["0", "1", "2"]


def test_why_and_brokers_answer_or_say_that_the_broker_has_no_such_call(
    engine: RunningEngine, run: Run
) -> None:
    topic = f"topic://public/default/{engine.new_name('asked')}"
    assert run("topic", "create", topic)[0] == 0
    for words in (("topic", "why", topic), ("brokers",)):
        code, out, error = run(*words)
        if engine.lacks(EngineLimit.EXPLAINING):
            assert code == 1
            assert "this broker has no call GET" in error
            assert "only brokers of Anabranch have it" in error
            assert "Traceback" not in error
        else:
            assert code == 0, error
            assert out
