"""Patterns that a broker matches: the same names as Python's patterns, in a time that is bounded."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import NotAllowedError
from anabranch.model.name_patterns import NamePattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\W", r"\.", "-"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{1,}", "*?"])
    return st.one_of(
        st.builds("({}){}".format, inner, counts),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("{}{}".format, inner, inner),
    )


@given(st.recursive(ATOMS, _larger, max_leaves=6), st.text("abc1.-", max_size=8))
def test_a_pattern_matches_what_python_matches(pattern: str, text: str) -> None:
    assert NamePattern(pattern).matches(text) is (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^public/default/orders-.*$", "public/default/orders-1"),
        (r"public/default/\Qa.b*\E.*", "public/default/a.b*c"),
        (r"[]a]+", "]a"),
        (r"a\$", "a$"),
    ],
)
def test_the_ends_of_a_pattern_and_quotes_are_understood(pattern: str, text: str) -> None:
    assert NamePattern(pattern).matches(text)
    assert not NamePattern(pattern).matches(f"x{text}x")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "(?=a)",
        "(?i)a",
        r"\1",
        r"\bx",
        "[a",
        "a**",
        "*",
        "a{2",
        "a{999}",
        "(a{90}){90}",
        "a^b",
        "\\",
    ],
)
def test_other_syntax_is_refused(pattern: str) -> None:
    with pytest.raises(NotAllowedError):
        NamePattern(pattern)


def test_no_pattern_takes_long() -> None:
    began = time.process_time()
    assert not NamePattern("(a|aa|a*)*" * 10 + "b").matches("a" * 1000)
    assert time.process_time() - began < 2
