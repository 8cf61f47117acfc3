"""Admin clients that are closed, or get arguments of wrong types, answer before any connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch import AdminClient, AsyncAdminClient
from anabranch.errors import AlreadyClosedError, InvalidConfigurationError

NOWHERE = "http://127.0.0.1:1"


def test_a_closed_blocking_client_raises() -> None:
    with AdminClient(NOWHERE) as admin:
        assert repr(admin) == f"<AdminClient {NOWHERE}>"
    assert repr(admin) == f"<AdminClient {NOWHERE} closed>"
    for _ in range(2):
        with pytest.raises(AlreadyClosedError, match="admin client is closed"):
            admin.list_topics("public/default")
        admin.close()


async def test_a_closed_asynchronous_client_raises() -> None:
    async with AsyncAdminClient(NOWHERE) as admin:
        pass
    assert repr(admin) == f"<AsyncAdminClient {NOWHERE} closed>"
    with pytest.raises(AlreadyClosedError, match="admin client is closed"):
        await admin.list_topics("public/default")


@pytest.mark.parametrize("timeout", [-1, "5", True, float("nan"), float("inf"), object()])
async def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="timeout_s must be a positive number of seconds"):
        AdminClient(NOWHERE, timeout_s=timeout)
    with AdminClient(NOWHERE) as admin, pytest.raises(InvalidConfigurationError, match="timeout must be"):
        admin.brokers(timeout=timeout)
    async with AsyncAdminClient(NOWHERE) as other:
        with pytest.raises(InvalidConfigurationError, match="timeout must be"):
            await other.brokers(timeout=timeout)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda admin: admin.create_topic(5), "a topic name must be text, not 5"),
        (lambda admin: admin.create_topic("t", properties=5), "properties must be a mapping, not 5"),
        (lambda admin: admin.create_classic_topic("t", properties=[1]), "properties must be a mapping"),
        (lambda admin: admin.list_topics("public/default", ["a"]), "properties must be a mapping"),
        (lambda admin: admin.list_topics(None), "None is not a namespace; write tenant/namespace"),
        (lambda admin: admin.delete_tenant(5), "tenants must be text, not 5"),
        (lambda admin: admin.create_tenant("acme", "alice"), "admins must be a list of texts, not 'alice'"),
        (lambda admin: admin.grant("public/default", "alice", "produce"), "actions must be a list of texts"),
        (lambda admin: admin.grant_on_topics([5]), "grants must be a list of TopicPermissions, not 5"),
        (lambda admin: admin.merge("orders", 5), "segments must be a list of segment ids, not 5"),
        (lambda admin: admin.merge("orders", "12"), "segments must be a list of segment ids, not '12'"),
        (lambda admin: admin.split("orders", "0"), "segment must be a whole number of at least 0, not '0'"),
        (lambda admin: admin.split("orders", 0, points="12"), "points must be a list of hashes, not '12'"),
        (lambda admin: admin.split("orders", 0, parts="2"), "parts must be a whole number"),
        (lambda admin: admin.split("orders", 0, by_traffic="no"), "by_traffic must be True or False"),
        (
            lambda admin: admin.rebucket("orders", 0, boundaries=5),
            "boundaries must be a list of hashes",
        ),
        (lambda admin: admin.segment_stats("orders", None), "segment must be a whole number"),
        (lambda admin: admin.quotas(5), "of must be text, not 5"),
        (lambda admin: admin.set_quotas("acme", 5), "quotas must be a mapping, not 5"),
        (lambda admin: admin.lookup(5), "a topic name must be text, not 5"),
        (lambda admin: admin.grow_partitions("t", object()), "has no form in JSON"),
    ],
)
def test_a_wrong_type_is_refused_with_its_name(call: Callable[[Any], Any], reason: str) -> None:
    with AdminClient(NOWHERE) as admin, pytest.raises(InvalidConfigurationError, match=reason):
        call(admin)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda admin: admin.split("orders", 0, point=[100]), "point"),
        (lambda admin: admin.rebucket("orders", 0, buckets=4), "buckets"),
    ],
)
def test_a_mistyped_option_changes_no_layout(call: Callable[[Any], Any], name: str) -> None:
    with (
        AdminClient(NOWHERE) as admin,
        pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"),
    ):
        call(admin)


@pytest.mark.parametrize("kind", [AdminClient, AsyncAdminClient])
def test_a_mistyped_argument_of_a_client_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        kind(NOWHERE, timeout=5)
