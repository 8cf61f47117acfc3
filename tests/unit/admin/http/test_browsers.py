"""Requests that web pages cause are refused by host, origin and content type; those of tools are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.admin.http.browsers import AllowedHosts, RequestHead, why_refused
from anabranch.admin.routes.table import ENDPOINTS
from anabranch.config.broker import BrokerConfig
from tests.harness.admin import ORDERS, Admin

TENANT = "/admin/v2/tenants/acme"
HEALTH = "/admin/v2/brokers/health"
EVIL = "http://evil.test"


def status_of(
    method: str = "GET", path: str = TENANT, own: str = "10.1.2.3", hosts: str = "", **headers: str
) -> int:
    """The status of a refusal; 0 for a request that is let through."""
    config = BrokerConfig(http_allowed_hosts=hosts, advertised_host="broker.example")
    given = {"host": "localhost:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    refused = why_refused(RequestHead(method, path, given, own), AllowedHosts.of(config, "box"))
    return 0 if refused is None else refused.status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.:8080",
        "127.0.0.1:8080",
        "127.9.9.9",
        "[::1]:8080",
        "[::ffff:127.0.0.1]",
        "broker.example:1",
        "box",
        "10.1.2.3:8080",
    ],
)
def test_a_host_that_the_broker_has_is_answered(host: str) -> None:
    assert status_of(host=host) == 0


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:8080",
        "localhost.evil.test",
        "127.0.0.1.evil.test",
        "evil-localhost",
        "notbroker.example",
        "10.1.2.4:8080",
        "0.0.0.0:8080",
        "[::]:8080",
        "",
        "localhost, evil.test",
        "user@evil.test",
        "[bad",
        "2130706433",
    ],
)
def test_a_host_that_the_broker_does_not_know_is_refused(host: str) -> None:
    assert status_of(host=host) == 403
    assert status_of("DELETE", host=host) == 403


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site"])
def test_a_header_that_is_sent_twice_hides_nothing(name: str) -> None:
    good = {"host": "localhost", "origin": "http://localhost", "sec-fetch-site": "same-origin"}
    bad = {"host": "evil.test", "origin": EVIL, "sec-fetch-site": "cross-site"}
    usual = [(one.encode(), value.encode()) for one, value in good.items()]
    scope = {"method": "DELETE", "path": TENANT, "server": ("127.0.0.1", 8080)}
    hosts = AllowedHosts.of(BrokerConfig(), "box")
    assert why_refused(RequestHead.of({**scope, "headers": usual}), hosts) is None
    twice = (name.encode(), bad[name].encode())
    for headers in ([*usual, twice], [twice, *usual]):
        assert why_refused(RequestHead.of({**scope, "headers": headers}), hosts) is not None


def test_more_hosts_are_allowed_by_a_setting() -> None:
    hosts = "Proxy.example, *.svc.local,10.9.9.9"
    for host in ("proxy.example", "a.svc.local:80", "b.a.svc.local", "10.9.9.9:8080"):
        assert status_of(host=host) == 403
        assert status_of(host=host, hosts=hosts) == 0
    for host in ("svc.local", "xsvc.local", "a.proxy.example"):
        assert status_of(host=host, hosts=hosts) == 403
    assert status_of(host="evil.test", hosts="*") == 0


def test_a_probe_may_use_any_address_for_health_and_nothing_else() -> None:
    assert status_of(path=HEALTH, host="192.168.7.7:8080") == 0
    assert status_of(path=HEALTH, host="evil.test") == 403
    assert status_of("DELETE", path=HEALTH, host="192.168.7.7") == 403
    assert status_of(path="/metrics", host="192.168.7.7:8080") == 403


def test_a_program_without_a_host_header_is_no_browser() -> None:
    head = RequestHead("GET", HEALTH, {}, "10.1.2.3")
    assert why_refused(head, AllowedHosts.of(BrokerConfig(), "box")) is None
    for origin in ("", "null", EVIL):
        assert why_refused(head._replace(headers={"origin": origin}), AllowedHosts.of(BrokerConfig(), "box"))


@pytest.mark.parametrize(
    "origin", [EVIL, "null", "http://localhost:9999", "file://", "http://localhost", "", "http://[bad"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
def test_a_foreign_origin_is_refused_for_every_method(method: str, origin: str) -> None:
    assert status_of(method, origin=origin) == 403


def test_the_own_origin_is_allowed() -> None:
    assert status_of("DELETE", origin="http://localhost:8080", sec_fetch_site="same-origin") == 0
    assert status_of("DELETE", host="broker.example", origin="https://broker.example") == 0


@pytest.mark.parametrize("site", ["cross-site", "same-site", "something-new"])
def test_a_request_of_another_site_is_refused_without_an_origin_too(site: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert status_of(method, sec_fetch_site=site) == 403
    navigation = {"sec_fetch_site": site, "sec_fetch_mode": "navigate"}
    assert status_of("GET", **navigation, sec_fetch_dest="document") == 0
    assert status_of("GET", **navigation, sec_fetch_dest="iframe") == 403
    assert status_of("POST", **navigation, sec_fetch_dest="document") == 403


def test_what_a_person_types_into_a_browser_is_answered() -> None:
    assert status_of("GET", sec_fetch_site="none", sec_fetch_mode="navigate", sec_fetch_dest="document") == 0


@pytest.mark.parametrize("length", ["0", "5"])
@pytest.mark.parametrize(
    "kind",
    ["application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "Text/Plain; charset=utf-8"],
)
def test_a_form_is_refused_also_when_it_is_empty(kind: str, length: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert status_of(method, content_type=kind, content_length=length) == 415


def test_a_body_must_be_json() -> None:
    own = "application/vnd.partitioned-topic-metadata+json"
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON", own):
        assert status_of("PUT", content_type=kind, content_length="5") == 0
        assert status_of("PUT", content_type=kind, transfer_encoding="chunked") == 0
    for kind in ("application/xml", "application/json, text/plain", "x/json", "application/octet-stream"):
        assert status_of("PUT", content_type=kind, content_length="5") == 415
    assert status_of("POST", content_length="5") == 415
    assert status_of("POST", transfer_encoding="chunked") == 415


def test_a_call_without_a_body_needs_no_content_type() -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert status_of(method) == 0
        assert status_of(method, content_length="0") == 0


async def test_a_page_of_another_site_changes_nothing(admin: Admin) -> None:
    assert (await admin.ask("PUT", TENANT, {"allowedClusters": ["standalone"]})).status == 204
    for headers in ({"origin": EVIL}, {"host": "evil.test"}, {"sec-fetch-site": "cross-site"}):
        refused = await admin.ask("DELETE", TENANT, headers=headers)
        assert refused.status == 403
        assert refused.json["reason"]
        event = admin.brokers.audit.events[-1]
        assert (event.action, event.outcome) == (f"DELETE {TENANT}", "refused")
    assert (await admin.ask("GET", TENANT)).status == 200
    assert (await admin.ask("DELETE", TENANT, headers={"content-type": None})).status == 204


async def test_a_refusal_comes_before_the_handler_of_every_route(admin: Admin) -> None:
    for method, path in every_route():
        assert (await admin.ask(method, path, headers={"host": "evil.test"})).status == 403, path
        assert (await admin.ask(method, path, headers={"origin": EVIL})).status == 403, path


def every_route() -> Iterator[tuple[str, str]]:
    for one in ENDPOINTS:
        for method in ("GET", "HEAD") if one.method == "GET" else (one.method,):
            yield method, one.path.replace("{", "").replace("}", "")


@pytest.mark.parametrize("path", [HEALTH, "/metrics", "/status.html", "/nothing", ORDERS])
async def test_every_answer_tells_browsers_to_be_careful(orders: Admin, path: str) -> None:
    for headers in ({}, {"origin": EVIL}):
        answer = await orders.ask("GET", path, headers=headers)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert not [name for name in answer.headers if name.startswith("access-control")]
