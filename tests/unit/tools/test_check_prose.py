from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_prose import dialect_in, findings, main, paragraphs, riddle_in, sentences


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Whoever asked got the error.", "Whoever"),
        ("Read by nobody else.", "nobody"),
        ("What a link does with bytes.", "What"),
        ("The link opened again. Who waited sets out now.", "Who"),
        ("Where the log begins.", "Where"),
    ],
)
def test_a_word_in_place_of_a_noun_is_found(text: str, word: str) -> None:
    assert riddle_in(text) == word


@pytest.mark.parametrize(
    "text",
    [
        "The leader notifies consumers.",
        "The segment says what it stored.",
        "A whole segment.",
        "A reader who waits, and the operator whom the broker asks.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert riddle_in(text) is None
    assert dialect_in(text) is None


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("{} is no directory; choose another", "is no"),
        ("{} is no {}", "is no"),
        ("Bytes that are no commit.", "are no"),
        ("It must be no topic.", "be no"),
        ("A broker of ours converts them.", "of ours"),
        ("The group begins anew.", "anew"),
        ("It waited in vain.", "in vain"),
        ("The messages at hand.", "at hand"),
        ("What it reads is its own matter.", "its own matter"),
        ("It failed for want of room.", "for want of"),
        ("keep (for the 5. time)", "for the 5. time"),
        ("keep (for the {}. time)", "for the {}. time"),
    ],
)
def test_a_phrase_that_is_not_english_is_found(text: str, phrase: str) -> None:
    assert dialect_in(text) == phrase


@pytest.mark.parametrize(
    "text",
    [
        "There is no topic, and there are no readers.",
        "There must be no gap; there may be no owner.",
        "The segment is no longer active.",
        "The copy is no larger than the log.",
        "`anew` says whether the bytes before are gone.",
        "Is there no owner?",
        "on the other hand",
    ],
)
def test_similar_english_phrases_pass(text: str) -> None:
    assert dialect_in(text) is None


def test_docstrings_comments_and_messages_are_read() -> None:
    source = '"""A module of shops."""\n# The shop is closed.\nraise ValueError(f"shop {1} is closed now")\n'
    assert [text for _, text in sentences(source)] == [
        "The shop is closed.",
        "A module of shops.",
        "shop {} is closed now",
    ]


def test_lines_of_one_comment_are_one_text() -> None:
    source = "# The shop is\n# closed.\nx = 1  # the first\n# and another\n\n# The last.\n"
    assert list(sentences(source)) == [
        (1, "The shop is closed."),
        (3, "the first"),
        (4, "and another"),
        (6, "The last."),
    ]


def test_short_strings_are_not_prose() -> None:
    assert list(sentences('word = "nobody knows"\n')) == []


def test_paragraphs_of_documents_are_read_without_code_blocks() -> None:
    source = "# Shops\n\nThe shop is\nclosed:\n```python\nshop of ours\n```\nIt opens later."
    assert list(paragraphs(source)) == [
        (1, "# Shops"),
        (3, "The shop is closed:"),
        (8, "It opens later."),
    ]


def test_a_phrase_over_two_lines_is_found(tmp_path: Path) -> None:
    comment, message, document = tmp_path / "comment.py", tmp_path / "message.py", tmp_path / "document.md"
    comment.write_text("# The file is\n# no store.\n")
    message.write_text('x = 1\nraise ValueError("the file is "\n    f"no store of {x}")\n')
    document.write_text("Where the file is\nno store.\n")
    found = [line for path in (comment, message, document) for line in findings(path)]
    assert [line.partition(" in: ")[0] for line in found] == [
        f"{comment}:1: 'is no'",
        f"{message}:2: 'is no'",
        f"{document}:1: 'is no'",
    ]


def test_the_exit_code_tells_whether_there_are_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.py").write_text("# There is no store.\n")
    assert main([str(tmp_path)]) == 0
    (tmp_path / "bad.md").write_text("This is no store.\n")
    assert main([str(tmp_path)]) == 1
    assert main(["--count", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"    1 {tmp_path}"
