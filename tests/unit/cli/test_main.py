"""The command line: words, help, exit codes, and the imports before a command is known."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App

from anabranch.cli.main import main
from anabranch.cli.parsing import flowing, make_app, run_words
from anabranch.cli.server.serving import ServeOptions, plain_options
from anabranch.cli.topics.topic_text import state_lines, waiting_lines

HEAVY = ("google.protobuf", "msgspec", "pyspark", "sqlite3", "starlette", "uvicorn", "uvloop")
PARSER = ("cyclopts", "rich", "argparse")


def modules_after(code: str, names: tuple[str, ...]) -> list[str]:
    """The modules of these that a fresh Python has imported after the code."""
    shown = (
        f"import sys; {code}; print(*(name for name in {names!r} if name in sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return result.stderr.splitlines()[-1].split()


def test_help_imports_no_command() -> None:
    assert modules_after("from anabranch.cli.main import main; main(['--help'])", HEAVY) == []


def test_serve_starts_without_the_parser_of_the_command_line() -> None:
    code = "from anabranch.cli.main import main; main(['serve', '--port', '0', '--set', 'no_such_setting=1'])"
    assert modules_after(code, PARSER) == []


def test_a_broker_without_its_packages_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    data = tmp_path / "data"
    assert main(["serve", "--port", "0", "--http-port", "0", "--data", str(data)]) == 1
    shown = capsys.readouterr()
    assert "pip install 'anabranch[server]'" in shown.err
    assert shown.out == ""
    assert not data.exists()


@pytest.mark.parametrize(
    ("words", "sets"),
    [
        ("", []),
        ("--port 0 --http-port=1 --host h", ["port=0", "http_port=1", "host=h"]),
        ("--data d --set a=b --workers 2", ["a=b", "data=d", "workers=2"]),
        ("--allow-unauthenticated --tls-port 3", ["allow_unauthenticated=true", "tls_port=3"]),
    ],
)
def test_plain_options_of_serve_mean_the_same_without_and_with_the_parser(
    words: str, sets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = plain_options([*words.split(), "--config", "file"])
    assert options == ServeOptions("file", tuple(sets))
    parsed: list[ServeOptions] = []

    def keep(found: ServeOptions) -> int:
        parsed.append(found)
        return 0

    monkeypatch.setattr("anabranch.cli.server.serve.run_broker", keep)
    assert run_words(["serve", "--config", "file", *words.split()]) == 0
    assert [(one.config, sorted(one.sets)) for one in parsed] == [("file", sorted(sets))]


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--port",
        "--port x",
        "--prot 1",
        "--port 1 --port 2",
        "--config a --config b",
        "word",
        "--data -x",
    ],
)
def test_other_words_of_serve_are_left_to_the_parser(words: str) -> None:
    assert plain_options(words.split()) is None


def test_help_shows_every_command_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("serve", "topic", "produce", "consume", "config", "bench", "examples"):
        assert word in text


def chains(app: App) -> list[tuple[str, ...]]:
    """The words of every command below an application."""
    found: list[tuple[str, ...]] = []
    for name in app:
        if not name.startswith("-"):
            found += [(name,), *((name, *rest) for rest in chains(app[name]))]
    return found


def test_every_command_has_help_that_describes_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    every = chains(make_app())
    assert len(every) > 60
    for chain in every:
        assert main([*chain, "--help"]) == 0, chain
        text = capsys.readouterr().out
        assert f"Usage: anabranch {' '.join(chain)}" in text
        assert re.search(r"^│ (\*  |   )?--?[a-z][-a-z]+ +[A-Z]* *│", text, re.MULTILINE) is None, text


def test_a_paragraph_of_help_is_broken_by_the_terminal_alone() -> None:
    assert flowing("a\nb\n\n c\nd") == "a b\n\nc d"


@pytest.mark.parametrize(("words", "meant"), [(["topci"], "topic"), (["topic", "shwo", "t"], "show")])
def test_a_mistyped_command_is_answered_with_the_nearest_one(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_knows_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("anabranch", "rebucket", "subscription"):
        assert word in text


def test_python_runs_the_package() -> None:
    command = [sys.executable, "-m", "anabranch", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("anabranch 0.")


def options_of(chain: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The options that the help of a command describes, without its examples."""
    assert main([*chain, "--help"]) == 0
    lines = (line for line in capsys.readouterr().out.splitlines() if line.startswith("│"))
    return {word for line in lines for word in re.findall(r"--[a-z][-a-z]*", line)}


NO_ANSWER = {("serve",), ("control",), ("completion",)}
"""Commands that run until they are stopped, or write the script of a shell."""


def test_every_command_that_answers_can_answer_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    every = chains(make_app())
    leaves = [chain for chain in every if not any(other[:-1] == chain for other in every)]
    assert len(leaves) > 50
    lacking = [one for one in leaves if one not in NO_ANSWER and "--json" not in options_of(one, capsys)]
    assert lacking == []


def test_every_command_that_destroys_asks_and_takes_yes(capsys: pytest.CaptureFixture[str]) -> None:
    words = {"delete", "remove", "skip", "clean"}
    found = [chain for chain in chains(make_app()) if chain[-1] in words]
    assert {"topic", "schema", "sink", "lane", "policy", "quotas"} <= {chain[0] for chain in found}
    assert [chain for chain in found if "--yes" not in options_of(chain, capsys)] == []


def test_the_settings_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["port"], found["auto_scale"]["max_segments"] > 0) == (6650, True)


def test_a_completion_is_installed_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["completion", "bash", "--install"]) == 0
    written = Path(capsys.readouterr().out.removeprefix("wrote ").partition("; a new shell")[0])
    assert written.is_relative_to(tmp_path)
    assert "anabranch" in written.read_text()


def test_a_deletion_without_a_terminal_needs_yes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        "topic delete t",
        "tenant delete t",
        "namespace delete t/n",
        "subscription delete t s",
        "subscription skip t s",
        "schema delete t",
        "policy remove t/n retention",
        "quotas remove t",
    ):
        assert main(words.split()) == 1
        assert "confirm it with --yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["topic"], ["topic", "split", "t"], ["consume"], ["no-such-command"]]
)
def test_wrong_usage_leaves_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: anabranch" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("topic show", "TOPIC is missing"),
        ("topic split orders", "SEGMENT is missing"),
        ("subscription seek orders s", "--to is missing"),
        ("schema add orders order.avsc", "--type is missing"),
        ("produce orders --key", "--key needs a value"),
        ("topic why orders 0 1", "too many words: 0 1"),
        ("consume orders --cuont 1", "Did you mean --count"),
    ],
)
def test_wrong_usage_is_named_in_plain_words(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert text in capsys.readouterr().err.splitlines()[-1]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("anabranch 0.")


def test_the_default_configuration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    assert "scalableTopicMaxSegments" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["topic", "show", "non-persistent://public/default/t"], "persistent:// topics"),
        (["topic", "create", "persistent://public/default/t", "--segments", "2"], "for topic:// topics"),
        (["topic", "create", "t", "--partitions", "2"], "for persistent:// topics"),
        (["consume", "t", "--type", "queue"], "--subscription"),
        (["consume", "t", "--json", "-o", "raw"], "contradicts"),
        (["produce", "t", "--tombstone", "--value", "v"], "no value"),
        (["subscription", "seek", "t", "s", "--to", "soon"], "how long ago"),
        (["topic", "show", "a//b"], "cannot be a namespace name"),
        (["topic", "create", "t", "--property", "colour"], "key=value"),
        (["topic", "create", "t", "--property", "=red"], "key=value"),
        (["topic", "list", "--property", "a=1", "--property", "a=2"], "given twice"),
        (["topic", "split", "t", "0", "--points", "middle"], "separated by commas"),
        (["topic", "list", "--admin-url", "localhost"], "http://host:port"),
        (["produce", "t", "--value", "v", "--url", "http://localhost:8080"], "binary port"),
        (["serve", "--set", "port"], "key=value"),
        (["produce", "t", "--count", "0"], "1 or more"),
        (["consume", "t", "--count", "0"], "1 or more"),
        (["subscription", "seek", "t", "s", "--to", "latest"], "`anabranch subscription skip`"),
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
