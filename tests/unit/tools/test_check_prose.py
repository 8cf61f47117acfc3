from __future__ import annotations

import pytest

from tools.check_prose import riddle_in, sentences


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
    "text", ["The leader notifies consumers.", "The segment says what it stored.", "A whole segment."]
)
def test_plain_sentences_pass(text: str) -> None:
    assert riddle_in(text) is None


def test_docstrings_comments_and_messages_are_read() -> None:
    source = '"""A module of shops."""\n# The shop is closed.\nraise ValueError(f"shop {1} is closed now")\n'
    assert [text for _, text in sentences(source)] == [
        "The shop is closed.",
        "A module of shops.",
        " is closed now",
    ]


def test_short_strings_are_no_prose() -> None:
    assert list(sentences('word = "who knows"\n')) == []
