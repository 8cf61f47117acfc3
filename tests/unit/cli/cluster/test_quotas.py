"""Quotas as a user writes them, and as the command line shows them."""

from __future__ import annotations

import pytest

from anabranch.cli.cluster.quotas import parse_quota, quota_lines
from anabranch.errors import InvalidConfigurationError


def test_a_count_is_one_number() -> None:
    assert parse_quota("acme", "maxConnections=200") == ("maxConnections", 200)
    assert parse_quota("acme/orders", "maxProducersPerTopic=0") == ("maxProducersPerTopic", 0)


def test_a_rate_is_messages_and_bytes() -> None:
    messages, size = "publishThrottlingRateInMsg", "publishThrottlingRateInByte"
    assert parse_quota("acme", "publishRate=100") == ("publishRate", {messages: 100, size: -1})
    assert parse_quota("topic://acme/a/b", "publishRate=7") == ("publishRate", {messages: 7, size: -1})
    assert parse_quota("acme", "publishRate=-1,2MiB") == ("publishRate", {messages: -1, size: 2**21})
    _, rate = parse_quota("acme/orders", "subscriptionDispatchRate=5,6")
    assert rate == {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": 6}


@pytest.mark.parametrize(
    ("of", "text"),
    [
        ("acme", "maxConnections"),
        ("acme", "maxConnections=many"),
        ("acme", "maxConnections=1,2"),
        ("acme", "publishRate=1,2,3"),
        ("acme", "maxProducersPerTopic=1"),
        ("acme", "subscriptionDispatchRate=1"),
        ("acme/orders", "maxProducers=1"),
        ("topic://acme/orders/paid", "maxProducersPerTopic=1"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(of: str, text: str) -> None:
    with pytest.raises(InvalidConfigurationError):
        parse_quota(of, text)


def test_a_tenant_shows_what_it_uses_of_each_count() -> None:
    used = dict.fromkeys(
        ("connections", "namespaces", "topics", "subscriptions", "producers", "consumers"), 3
    )
    rate = {
        "dispatchThrottlingRateInMsg": 5,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 2,
    }
    lines = quota_lines({"maxTopics": 7, "dispatchRate": rate}, used)
    assert "maxTopics: 3 of 7" in lines
    assert "maxConnections: 3 of any" in lines
    assert "dispatchRate: 5 messages in 2 seconds" in lines


def test_a_namespace_shows_only_its_own_policies() -> None:
    rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 20}
    assert quota_lines({"maxProducersPerTopic": 4, "publishRate": rate}, {}) == [
        "maxProducersPerTopic: 4",
        "publishRate: 10 messages and 20 bytes a second",
    ]
