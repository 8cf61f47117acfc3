"""The command line: words, help, exit codes, and the imports before a command is known."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anabranch.cli.main import main
from anabranch.cli.topic import state_lines, waiting_lines

HEAVY = ("google.protobuf", "msgspec", "pyspark", "rich", "sqlite3", "starlette", "uvicorn", "uvloop")


def test_nothing_heavy_is_imported_before_the_command_is_known() -> None:
    code = (
        "import sys, anabranch.cli.main as m; m._parser(['serve']).parse_args(['serve']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_shows_every_command_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for word in ("serve", "topic", "produce", "consume", "config", "bench", "examples"):
        assert word in text


@pytest.mark.parametrize(
    "arguments", [[], ["topic"], ["topic", "split", "t"], ["consume"], ["no-such-command"]]
)
def test_wrong_usage_leaves_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: anabranch" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("anabranch 0.")


def test_the_default_configuration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    assert "scalableTopicMaxSegments" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["topic", "show", "persistent://public/default/t"], "begins with topic://"),
        (["topic", "show", "a//b"], "cannot be a namespace name"),
        (["topic", "create", "t", "--property", "colour"], "key=value"),
        (["topic", "create", "t", "--property", "=red"], "key=value"),
        (["topic", "list", "--property", "a=1", "--property", "a=2"], "given twice"),
        (["topic", "split", "t", "0", "--points", "middle"], "separated by commas"),
        (["topic", "list", "--admin-url", "localhost"], "http://host:port"),
        (["produce", "t", "--value", "v", "--url", "http://localhost:8080"], "binary port"),
        (["serve", "--set", "port"], "key=value"),
        (["produce", "t", "--count", "0"], "1 or more"),
    ],
)
def test_a_mistake_is_answered_in_words_and_leaves_with_1(
    arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("anabranch: ")
    assert answer in error


def test_why_says_what_is_under_way_and_what_is_in_its_way() -> None:
    steps = [{"parentIds": [3, 4]}]
    operation = {"kind": "merge", "steps": steps, "reason": "by request", "phase": "sealing"}
    rests: dict[str, object] = {"operation": None, "waitingChanges": 0, "troubles": {}, "garbage": []}
    assert state_lines(rests) == []
    at_work: dict[str, object] = {
        "operation": operation,
        "waitingChanges": 1,
        "troubles": {"segment 4": "no answer"},
    }
    assert state_lines(at_work | {"garbage": ["a", "b"]}) == [
        "under way: merge of segment 3, 4, by request; sealing",
        "1 change in the queue",
        "trouble with segment 4: no answer",
        "still to be deleted: a, b",
    ]


def test_why_names_the_ancestor_and_its_readers() -> None:
    part = {"segment": 0, "buckets": ["0000-3fff", "c000-ffff"], "consumers": ["a", "b"]}
    whole = {"segment": 1, "buckets": ["0000-ffff"], "consumers": []}
    assert waiting_lines("billing", {"waiting": {"3": [part, whole]}}) == [
        "subscription billing: segment 3 waits for buckets 0000-3fff, c000-ffff of segment 0, read by a, b",
        "subscription billing: segment 3 waits for segment 1, read by no consumer",
    ]
    assert waiting_lines("billing", {"waiting": {}}) == []


def test_why_says_what_else_a_subscription_waits_for() -> None:
    here = {"connected": True, "evictedInSeconds": None, "segments": [1]}
    away = {"connected": False, "evictedInSeconds": 41.7, "segments": [2]}
    idle = {"connected": False, "evictedInSeconds": 41.7, "segments": []}
    state = {
        "unfinished": "seek",
        "trouble": "no answer",
        "unreached": {"2": "it is away"},
        "consumers": {"a": here, "b": away, "c": idle},
        "waiting": {},
    }
    assert waiting_lines("billing", state) == [
        "subscription billing: seek is not complete on all segments yet",
        "subscription billing: no answer",
        "subscription billing: the owner of segment 2 has no roster yet: it is away",
        "subscription billing: b is disconnected and keeps its segments for 42 s more",
    ]
