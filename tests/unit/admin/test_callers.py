"""HTTP requests: credentials in their headers, the caller behind them, and the answer to wrong ones."""

from __future__ import annotations

import base64

import pytest

from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.security import SECURE, token_for

TENANTS = "/admin/v2/tenants"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(text: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@pytest.mark.brokers(**SECURE)
def test_a_bearer_token_is_accepted(admin: Admin) -> None:
    assert admin("GET", TENANTS, headers=bearer(token_for("alice"))).status == 200


@pytest.mark.brokers(**SECURE)
@pytest.mark.parametrize(
    "headers",
    [{}, bearer("rubbish"), bearer(token_for("a", exp=1)), basic("a:b"), {"authorization": "Digest x"}],
)
def test_wrong_credentials_get_one_fixed_answer(
    admin: Admin, brokers: Brokers, headers: dict[str, str]
) -> None:
    for path in (TENANTS, "/admin/v2/nowhere", "/metrics"):
        answer = admin("GET", path, headers=headers)
        assert (answer.status, answer.json) == (401, {"reason": "authentication failed"})
        assert answer.headers["www-authenticate"] == "Bearer"
    assert brokers.audit.events[0].action == f"GET {TENANTS}"


@pytest.mark.brokers(**SECURE)
@pytest.mark.parametrize("path", ["/admin/v2/brokers/health", "/admin/v2/brokers/ready", "/status.html"])
def test_probes_of_load_balancers_need_no_credentials(admin: Admin, path: str) -> None:
    assert admin("GET", path).status == 200


@pytest.mark.brokers(**SECURE, authenticate_metrics=False)
def test_metrics_are_open_where_the_setting_says_so(admin: Admin) -> None:
    assert admin("GET", "/metrics").status == 200
    assert admin("GET", TENANTS).status == 401


def test_without_authentication_any_credentials_are_accepted(admin: Admin) -> None:
    assert admin("GET", TENANTS, headers=bearer("rubbish")).status == 200
