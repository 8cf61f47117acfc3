"""The check of rights before an admin call."""

from __future__ import annotations

import pytest

from anabranch.admin.endpoints import AdminEndpoint
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.rights import RIGHTS, grant, headers_of

pytestmark = pytest.mark.brokers(**RIGHTS)
APP = {"auth_policies": {"namespace_auth": {"app": ["produce"]}}}


async def status(admin: Admin, role: str, method: str, path: str, body: object = None) -> int:
    return (await admin.ask(method, path, body, headers=headers_of(role))).status


async def test_roles_call_what_they_may(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    topic = "/admin/v2/scalable/shop/prod/orders"
    assert await status(admin, "app", "PUT", topic) == 403
    assert await status(admin, "shop-admin", "PUT", topic) == 204
    assert await status(admin, "app", "GET", f"{topic}/stats") == 200
    assert await status(admin, "other", "GET", f"{topic}/stats") == 403
    assert await status(admin, "other", "GET", "/admin/v2/scalable/no/where/orders/stats") == 403
    assert await status(admin, "shop-admin", "POST", f"{topic}/split/0") == 403
    assert await status(admin, "root", "POST", f"{topic}/split/0") == 204
    assert await status(admin, "shop-admin", "DELETE", "/admin/v2/tenants/shop") == 403
    assert await status(admin, "", "GET", "/admin/v2/clusters") == 401
    assert await status(admin, "", "GET", "/status.html") == 200
    assert await status(admin, "app", "GET", "/metrics") == 403
    assert await status(admin, "root", "GET", "/metrics") == 200


async def test_an_escaped_name_is_checked_as_it_is_used(admin: Admin, brokers: Brokers) -> None:
    await grant(brokers, "shop/prod", APP)
    await grant(brokers, "bank/prod")
    for path in (
        "bank%2Fprod",
        "%62ank/prod",
        "shop%2F..%2Fbank/prod",
        "shop/%2E%2E%2Fbank",
        "shop/prod%2F..",
        "shop%00/prod",
    ):
        assert await status(admin, "app", "GET", f"/admin/v2/persistent/{path}") in (403, 404, 412), path
    assert await status(admin, "app", "GET", "/admin/v2/persistent/%73hop/prod") == 200


def test_an_endpoint_cannot_be_declared_without_a_right() -> None:
    with pytest.raises(TypeError, match="'right'"):
        AdminEndpoint("GET", "/admin/v2/tenants", handler=list)  # type: ignore[call-arg]


@pytest.mark.brokers(authenticate_metrics=False)
async def test_metrics_are_open_if_the_operator_says_so(admin: Admin) -> None:
    assert await status(admin, "", "GET", "/metrics") == 200
    assert await status(admin, "", "GET", "/admin/v2/tenants") == 401


async def test_a_proxy_calls_with_the_rights_of_its_client(admin: Admin, brokers: Brokers) -> None:
    roles = {"proxy": ["produce"], "app": ["produce"]}
    await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": roles}})
    topics = "/admin/v2/persistent/shop/prod"
    assert await status(admin, "proxy/app", "GET", topics) == 200
    assert await status(admin, "proxy/other", "GET", topics) == 403
    assert await status(admin, "proxy/root", "GET", "/admin/v2/tenants") == 403
    for wrong in ("proxy", "proxy/proxy", "app/root", "root/app"):
        assert await status(admin, wrong, "GET", topics) == 401, wrong


@pytest.mark.parametrize("header", ["authorization", "x-original-principal"])
async def test_a_request_that_proves_two_roles_is_refused(
    admin: Admin, brokers: Brokers, header: str
) -> None:
    await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": {"proxy": ["produce"]}}})
    headers = headers_of("proxy/root")
    twice = {**headers, header.upper(): headers[header]}
    for sent, expected in ((headers, 200), (twice, 401)):
        answer = await admin.ask("GET", "/admin/v2/persistent/shop/prod", headers=sent)
        assert answer.status == expected
