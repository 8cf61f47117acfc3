"""Which topics a query reads."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.topic_names import parse_pattern


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("orders-.*", ["orders-eu", "orders-"], ["orders", "x-orders-eu", "topic://acme/sales/orders-eu"]),
        ("acme/sales/o.*", ["topic://acme/sales/orders"], ["orders", "persistent://acme/sales/orders"]),
        ("topic://acme/sales/.*", ["topic://acme/sales/x"], ["x"]),
        ("persistent://public/default/a|b", ["persistent://public/default/b"], ["a", "b"]),
    ],
)
def test_a_pattern_matches_whole_names_of_its_namespace(
    text: str, matching: list[str], others: list[str]
) -> None:
    pattern = parse_pattern(text)
    assert [name for name in (*matching, *others) if pattern.matches(name)] == matching


@pytest.mark.parametrize("text", ["orders-(", "segment://a/b/.*", "topic://orders.*", "topic://a/.*"])
def test_a_text_that_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="subscribePattern"):
        parse_pattern(text)
