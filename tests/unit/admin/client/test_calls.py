"""Requests of admin clients, made from the declarations of endpoints."""

from __future__ import annotations

import pytest

from anabranch.admin.client import calls
from anabranch.admin.client.requests import AdminCall, any_topic, classic_topic, scalable_topic
from anabranch.admin.routes.table import CALLS

EVERY = {name: call for name, call in vars(calls).items() if isinstance(call, AdminCall)}


@pytest.mark.parametrize("name", EVERY)
def test_every_request_of_clients_is_an_endpoint(name: str) -> None:
    assert {(EVERY[name].method, path) for path in EVERY[name].paths} <= CALLS.keys()


def test_names_are_escaped_and_several_segments_are_parts_of_the_path() -> None:
    request = calls.MERGE(scalable_topic("topic://shop/prod/a/b c"), "1", "2")
    assert request.target == "/admin/v2/scalable/shop/prod/a%2Fb%20c/merge/1/2"


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        ("orders", "/admin/v2/scalable/public/default/orders/subscriptions/audit/lanes"),
        ("persistent://a/b/c", "/admin/v2/persistent/a/b/c/subscription/audit/lanes"),
        ("non-persistent://a/b/c", "/admin/v2/non-persistent/a/b/c/subscription/audit/lanes"),
    ],
)
def test_the_kind_of_the_topic_chooses_the_path(topic: str, path: str) -> None:
    assert calls.LANES(any_topic(topic), "audit").target == path


def test_parameters_without_a_value_are_left_out() -> None:
    topic = classic_topic("events")
    assert calls.SKIP_LANE(topic, "audit", "1", query={"count": None}).query == ()
    assert calls.SKIP_LANE(topic, "audit", "1", query={"count": 5}).query == (("count", "5"),)


def test_a_parameter_that_the_endpoint_does_not_declare_is_refused() -> None:
    with pytest.raises(AssertionError, match="no such parameter"):
        calls.SKIP_LANE(classic_topic("events"), "audit", "1", query={"limit": 5})
