"""HTTP requests: credentials in their headers, the caller behind them, and the answer to wrong ones."""

from __future__ import annotations

import base64

import pytest

from anabranch.transport.certificates import PeerCertificate
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.gates import data_url
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


USERS = data_url(b"bob:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=")


@pytest.mark.brokers(authentication=True, authentication_providers="basic,tls", basic_auth_file=USERS)
def test_a_password_or_a_certificate_is_accepted(admin: Admin, brokers: Brokers) -> None:
    assert admin("GET", TENANTS, headers=basic("bob:password")).status == 200
    wrong = admin("GET", TENANTS, headers=basic("bob:wrong"))
    assert wrong.status == 401
    assert wrong.headers["www-authenticate"].startswith("Basic realm=")
    assert admin("GET", TENANTS, headers={"authorization": "Basic ?"}).status == 401
    assert admin("GET", TENANTS).status == 401
    admin.certificate = PeerCertificate("carol", "commonName=carol", 10.0**10)
    assert admin("GET", TENANTS).status == 200
    # Wrong credentials count, also beside a valid certificate.
    assert admin("GET", TENANTS, headers=basic("bob:wrong")).status == 401


@pytest.mark.brokers(**SECURE, anonymous_role="guest")
def test_a_request_without_credentials_has_the_anonymous_role(admin: Admin) -> None:
    assert admin("GET", TENANTS).status == 200
    assert admin("GET", TENANTS, headers=bearer("rubbish")).status == 401
