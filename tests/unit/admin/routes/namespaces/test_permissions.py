"""Grants over HTTP: stored in Pulsar's form, in force at once, and noted in the audit log."""

from __future__ import annotations

import pytest

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin, AdminAnswer
from tests.harness.cluster import Brokers
from tests.harness.rights import RIGHTS, connect_as, grant, headers_of
from tests.harness.wire import error_of

pytestmark = pytest.mark.brokers(**RIGHTS)

PERMISSIONS = "/admin/v2/namespaces/shop/prod/permissions"
TOPIC = "/admin/v2/scalable/shop/prod/orders"
CLASSIC = "/admin/v2/persistent/shop/prod/orders"


async def ask(admin: Admin, method: str, path: str, body: object = None) -> AdminAnswer:
    """Make a call as the admin of the tenant."""
    return await admin.ask(method, path, body, headers=headers_of("shop-admin"))


async def test_a_grant_on_a_namespace_counts_until_it_is_revoked(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    app = await connect_as(brokers, "app")
    name = "persistent://shop/prod/orders"
    assert (await ask(admin, "POST", f"{PERMISSIONS}/app", ["produce", "consume"])).status == 204
    assert isinstance(await app.producer(name), pb.CommandProducerSuccess)
    assert (await ask(admin, "GET", PERMISSIONS)).json == {"app": ["consume", "produce"]}
    assert (await ask(admin, "POST", f"{PERMISSIONS}/app", ["consume"])).status == 204
    assert error_of(await app.producer(name, 2)) == pb.AuthorizationError
    assert isinstance(await app.subscribe(name), pb.CommandSuccess)
    assert (await ask(admin, "DELETE", f"{PERMISSIONS}/app")).status == 204
    assert (await ask(admin, "GET", PERMISSIONS)).json == {}
    assert error_of(await app.subscribe(name, "other", consumer_id=2)) == pb.AuthorizationError


async def test_grants_have_the_form_of_pulsars_policies(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    assert (await ask(admin, "PUT", TOPIC)).status == 204
    await ask(admin, "POST", f"{PERMISSIONS}/app", ["produce", "functions"])
    await ask(admin, "POST", f"{TOPIC}/permissions/reader", ["consume"])
    await ask(admin, "POST", f"{PERMISSIONS}/subscription/billing", ["reader"])
    shown = (await ask(admin, "GET", "/admin/v2/namespaces/shop/prod")).json
    assert shown["auth_policies"] == {
        "namespace_auth": {"app": ["functions", "produce"]},
        "destination_auth": {"persistent://shop/prod/orders": {"reader": ["consume"]}},
        "subscription_auth_roles": {"billing": ["reader"]},
    }


async def test_a_topic_has_the_same_grants_in_both_schemes(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": {"app": ["produce"]}}})
    assert (await ask(admin, "PUT", TOPIC)).status == 204
    assert (await ask(admin, "POST", f"{TOPIC}/permissions/app", ["consume"])).status == 204
    for path in (TOPIC, CLASSIC):
        assert (await ask(admin, "GET", f"{path}/permissions")).json == {"app": ["consume", "produce"]}
    assert (await ask(admin, "POST", f"{CLASSIC}/permissions/app", [])).status == 204
    assert (await ask(admin, "GET", f"{TOPIC}/permissions")).json == {"app": ["produce"]}
    assert (await ask(admin, "DELETE", f"{CLASSIC}/permissions/app")).status == 204


async def test_rights_are_granted_on_topics_that_exist(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    assert (await ask(admin, "POST", f"{TOPIC}/permissions/app", ["consume"])).status == 404
    assert (await ask(admin, "PUT", f"{CLASSIC}/partitions", 3)).status == 204
    assert (await ask(admin, "POST", f"{CLASSIC}/permissions/app", ["consume"])).status == 204
    assert (await ask(admin, "POST", f"{CLASSIC}-partition-1/permissions/app", ["consume"])).status == 204


async def test_rights_are_granted_on_topics_that_were_made_by_their_first_use(
    admin: Admin, brokers: Brokers
) -> None:
    await grant(brokers, "shop/prod")
    root = await connect_as(brokers, "root")
    for number, name in enumerate(("orders", "others-partition-0")):
        assert isinstance(
            await root.producer(f"persistent://shop/prod/{name}", number), pb.CommandProducerSuccess
        )
        path = f"/admin/v2/persistent/shop/prod/{name}/permissions/app"
        assert (await ask(admin, "POST", path, ["consume"])).status == 204


@pytest.mark.brokers(**RIGHTS, grants_on_missing_topics=True)
async def test_rights_on_topics_to_come_need_a_setting(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    assert (await ask(admin, "POST", f"{TOPIC}/permissions/app", ["consume"])).status == 204


async def test_a_new_topic_of_an_old_name_has_no_grants(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    for path, create in ((TOPIC, TOPIC), (CLASSIC, CLASSIC)):
        assert (await ask(admin, "PUT", create)).status == 204
        assert (await ask(admin, "POST", f"{path}/permissions/app", ["consume"])).status == 204
        assert (await ask(admin, "DELETE", path)).status == 204
        assert (await ask(admin, "GET", f"{path}/permissions")).json == {}


async def test_a_migrated_topic_keeps_its_grants_until_it_is_deleted(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    assert (await ask(admin, "PUT", CLASSIC)).status == 204
    assert (await ask(admin, "POST", f"{CLASSIC}/permissions/app", ["consume"])).status == 204
    assert (await ask(admin, "POST", f"{TOPIC}/migrate")).status == 204
    assert (await ask(admin, "GET", f"{TOPIC}/permissions")).json == {"app": ["consume"]}
    assert (await ask(admin, "DELETE", f"{TOPIC}?force=true")).status == 204
    assert (await ask(admin, "GET", f"{TOPIC}/permissions")).json == {}


async def test_a_subscription_is_reserved_for_roles(admin: Admin, brokers: Brokers) -> None:
    policies = {"auth_policies": {"namespace_auth": {"one": ["consume"], "two": ["consume"]}}}
    await grant(brokers, "shop/prod", policies)
    assert (await ask(admin, "POST", f"{PERMISSIONS}/subscription/billing", ["one"])).status == 204
    assert (await ask(admin, "GET", f"{PERMISSIONS}/subscription")).json == {"billing": ["one"]}
    one, two = await connect_as(brokers, "one"), await connect_as(brokers, "two")
    topic = "persistent://shop/prod/orders"
    assert isinstance(await one.subscribe(topic, "billing"), pb.CommandSuccess)
    assert error_of(await two.subscribe(topic, "billing")) == pb.AuthorizationError
    assert (await ask(admin, "DELETE", f"{PERMISSIONS}/billing/one")).status == 204
    assert (await ask(admin, "GET", f"{PERMISSIONS}/subscription")).json == {}
    assert (await ask(admin, "DELETE", f"{PERMISSIONS}/billing/one")).status == 404


async def test_subscriptions_can_have_to_begin_with_their_role(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": {"app": ["consume"]}}})
    mode = "/admin/v2/namespaces/shop/prod/subscriptionAuthMode"
    assert (await ask(admin, "POST", mode, "Suffix")).status == 412
    assert (await ask(admin, "POST", mode, "Prefix")).status == 204
    assert (await ask(admin, "GET", mode)).json == "Prefix"
    app, topic = await connect_as(brokers, "app"), "persistent://shop/prod/orders"
    assert error_of(await app.subscribe(topic, "billing")) == pb.AuthorizationError
    assert isinstance(await app.subscribe(topic, "app-billing"), pb.CommandSuccess)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/app", ["steal"]),
        ("POST", "/app", None),
        ("POST", "/app", {"app": ["produce"]}),
        ("POST", "/%20", ["produce"]),
        ("POST", "/a%0Ab", ["produce"]),
        ("POST", "/subscription/billing", [""]),
        ("POST", "/subscription/%20", ["app"]),
    ],
)
async def test_grants_without_sense_are_refused(
    admin: Admin, brokers: Brokers, method: str, path: str, body: object
) -> None:
    await grant(brokers, "shop/prod")
    assert (await ask(admin, method, PERMISSIONS + path, body)).status in (400, 412)
    assert (await ask(admin, "GET", PERMISSIONS)).json == {}


async def test_the_audit_log_has_calls_refusals_and_changed_rights(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    await ask(admin, "POST", f"{PERMISSIONS}/app", ["produce"])
    await ask(admin, "GET", PERMISSIONS)
    await ask(admin, "POST", f"{PERMISSIONS}/app", ["steal"])
    await admin.ask("GET", PERMISSIONS, headers=headers_of("app"))
    app = await connect_as(brokers, "app")
    await app.subscribe("persistent://shop/prod/orders")
    noted = [(one.action, one.outcome, one.caller.role, one.resource) for one in brokers.audit.events]
    assert noted == [
        (f"POST {PERMISSIONS}/app", "allowed", "shop-admin", ""),
        (f"POST {PERMISSIONS}/app", "failed", "shop-admin", ""),
        (f"GET {PERMISSIONS}", "refused", "app", "namespace shop/prod"),
        ("CommandSubscribe", "refused", "app", "persistent://shop/prod/orders with subscription sub"),
    ]
    first, *_, last = brokers.audit.events
    assert first.reason == "granted 'app' produce"
    assert last.reason == "'app' was not granted consume"


@pytest.mark.brokers(**RIGHTS, audit_successes=True)
async def test_calls_that_read_are_noted_if_the_log_has_successes(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    await ask(admin, "GET", PERMISSIONS)
    await ask(admin, "GET", "/admin/v2/brokers/health")
    noted = [(one.action, one.outcome) for one in brokers.audit.events if one.action.startswith("GET")]
    assert noted == [(f"GET {PERMISSIONS}", "allowed")]


async def test_rights_on_several_topics_are_changed_at_once(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod")
    await grant(brokers, "bank/prod")
    names = ["persistent://shop/prod/a", "topic://shop/prod/b"]
    for path in ("/admin/v2/persistent/shop/prod/a", "/admin/v2/scalable/shop/prod/b"):
        assert (await ask(admin, "PUT", path)).status == 204
    body: list[dict[str, object]] = [
        {"topic": name, "role": "app", "actions": ["produce", "consume"]} for name in names
    ]
    path = "/admin/v2/namespaces/{}PermissionsOnTopics"
    assert (await ask(admin, "POST", path.format("grant"), body)).status == 204
    shown = (await ask(admin, "GET", "/admin/v2/persistent/shop/prod/a/permissions")).json
    assert shown == {"app": ["consume", "produce"]}
    for wrong, status in (
        ({"topic": "persistent://bank/prod/a", "role": "app", "actions": []}, 403),
        ({"topic": "persistent://shop/prod/none", "role": "app", "actions": []}, 404),
        ({"topic": names[0], "role": "app", "actions": ["fly"]}, 412),
        ({"topic": names[0], "role": "app\n", "actions": []}, 412),
    ):
        more = [{"topic": names[1], "role": "other", "actions": ["produce"]}, wrong]
        assert (await ask(admin, "POST", path.format("grant"), more)).status == status
    shown = (await ask(admin, "GET", "/admin/v2/scalable/shop/prod/b/permissions")).json
    assert shown == {"app": ["consume", "produce"]}, "nothing of a refused call is granted"
    foreign = [{"topic": "persistent://bank/prod/a", "role": "app"}]
    assert (await ask(admin, "POST", path.format("revoke"), foreign)).status == 403
    revoked = [{"topic": name, "role": "app"} for name in names]
    assert (await ask(admin, "POST", path.format("revoke"), revoked)).status == 204
    assert (await ask(admin, "GET", "/admin/v2/scalable/shop/prod/b/permissions")).json == {}


@pytest.mark.parametrize(
    "given",
    [
        ["app"],
        {"namespace_auth": {"app": "produce"}},
        {"namespace_auth": {"app": ["fly"]}},
        {"namespace_auth": {"": ["produce"]}},
        {"destination_auth": {"persistent://bank/prod/a": {"app": ["produce"]}}},
        {"destination_auth": {"nowhere://": {}}},
        {"subscription_auth_roles": {"billing": "app"}},
    ],
)
async def test_a_namespace_with_malformed_grants_is_not_made(
    admin: Admin, brokers: Brokers, given: object
) -> None:
    await grant(brokers, "shop/prod")
    path = "/admin/v2/namespaces/shop/new"
    assert (await ask(admin, "PUT", path, {"auth_policies": given})).status == 412
    assert (await ask(admin, "GET", path)).status == 404
