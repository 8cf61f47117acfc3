"""Which topics a pattern means."""

from __future__ import annotations

import re
from typing import Any

import pytest

from anabranch.client.decide.consuming.topic_patterns import wanted_topics
from anabranch.errors import InvalidConfigurationError, UnsupportedFeatureError

NAMES = frozenset(("persistent://public/default/a", "persistent://public/default/ab", "topic://shop/eu/a"))


@pytest.mark.parametrize(
    ("text", "namespace", "classic", "found"),
    [
        ("a|b", "public/default", False, {"persistent://public/default/a", "topic://shop/eu/a"}),
        ("persistent://public/default/a.*", "public/default", True, NAMES - {"topic://shop/eu/a"}),
        ("^persistent://public/default/a$", "public/default", True, {"persistent://public/default/a"}),
        (re.escape("topic://shop/eu/a"), "shop/eu", False, {"topic://shop/eu/a"}),
        (r"topic://my\-shop/eu\.1/.*", "my-shop/eu.1", False, set()),
    ],
)
def test_a_scheme_decides_the_kind_and_the_namespace(
    text: str, namespace: str, classic: bool, found: set[str]
) -> None:
    wanted = wanted_topics(re.compile(text), None)
    assert (wanted.namespace, wanted.classic) == (namespace, classic)
    assert wanted.matching(NAMES) == found


def test_a_namespace_alone_means_all_topics() -> None:
    assert wanted_topics(None, "shop/eu").matching(NAMES) == NAMES


@pytest.mark.parametrize(
    "text",
    ["(persistent|topic)://public/default/a", "persistent://public/.*/a", "persistent://.*", "topic://a"],
)
def test_a_pattern_that_could_match_no_topic_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigurationError):
        wanted_topics(re.compile(text), None)


def test_a_pattern_of_bytes_is_refused() -> None:
    pattern: Any = re.compile(b"orders-.*")
    with pytest.raises(InvalidConfigurationError, match="must be a pattern of text"):
        wanted_topics(pattern, None)


def test_other_kinds_and_other_namespaces_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="non-persistent"):
        wanted_topics(re.compile("non-persistent://public/default/.*"), None)
    with pytest.raises(InvalidConfigurationError, match="not for shop/eu"):
        wanted_topics(re.compile("topic://public/default/.*"), "shop/eu")
    with pytest.raises(InvalidConfigurationError, match="give a list"):
        wanted_topics(None, None)
