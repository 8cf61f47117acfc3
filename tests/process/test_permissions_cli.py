"""Tenants, namespaces and permissions from the command line, at a broker that checks rights."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from anabranch.cli.main import main
from simulation.harness.process import BrokerProcess
from tests.harness.rights import RIGHTS
from tests.harness.security import token_for

RunAs = Callable[..., tuple[int, str]]


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return make_broker(**RIGHTS).start()


@pytest.fixture
def run_as(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunAs:
    """Runs a command as a role; returns the exit code and all that it printed."""
    monkeypatch.setenv("ANABRANCH_URL", broker.url)
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)

    def run(role: str, text: str) -> tuple[int, str]:
        monkeypatch.setenv("ANABRANCH_TOKEN", token_for(role))
        code = main(text.split())
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_rights_from_the_first_tenant_to_the_last_message(broker: BrokerProcess, run_as: RunAs) -> None:
    assert run_as("boss", "tenant create shop --admin boss")[0] == 1
    assert run_as("root", "tenant create shop --admin boss") == (0, "created tenant shop, admins boss\n")
    assert run_as("root", "tenant list") == (0, "public\nshop\n")
    assert run_as("boss", "tenant show shop") == (0, "tenant shop: admins boss\n")
    assert run_as("boss", "namespace create shop/prod") == (0, "created namespace shop/prod\n")
    assert run_as("boss", "namespace list shop") == (0, "shop/prod\n")

    produce = "produce topic://shop/prod/orders --value tea --count 1"
    code, text = run_as("app", produce)
    assert (code, "needs the right to produce or to consume" in text) == (1, True)
    granted = run_as("boss", "permissions grant shop/prod app produce consume")
    assert granted == (0, "app may produce and consume on shop/prod\n")
    assert run_as("app", produce)[0] == 0
    assert run_as("boss", "permissions show shop/prod") == (0, "app: consume, produce\n")
    assert run_as("boss", "permissions reserve shop/prod billing app")[0] == 0
    assert "subscription billing: app" in run_as("boss", "permissions show shop/prod")[1]

    topic = "topic://shop/prod/orders"
    assert run_as("boss", f"permissions grant {topic} reader consume")[0] == 0
    consume = f"consume {topic} --from earliest --count 1 --subscription"
    assert run_as("reader", f"{consume} mine") == (0, "tea\n")
    assert run_as("reader", f"{consume} billing")[0] == 1
    assert run_as("boss", "permissions revoke shop/prod app")[0] == 0
    assert run_as("app", produce)[0] == 1
    assert run_as("boss", f"permissions show {topic}") == (0, "reader: consume\n")

    assert run_as("boss", "tenant admins shop --admin boss --admin other")[0] == 1
    assert run_as("root", "tenant admins shop --admin other")[0] == 0
    assert run_as("boss", "namespace delete shop/prod --force --yes")[0] == 1
    assert run_as("other", "namespace delete shop/prod --force --yes") == (0, "deleted namespace shop/prod\n")
    assert run_as("root", "tenant delete shop --yes") == (0, "deleted tenant shop\n")

    assert broker.stop() == 0
    lines = [json.loads(line) for line in (broker.data / "audit.log").read_text().splitlines()]
    noted = {(line["role"], line["action"].split()[0], line["outcome"]): line.get("reason") for line in lines}
    assert noted["root", "DELETE", "allowed"] is None
    assert noted["boss", "PUT", "refused"] == "'boss' is not a superuser"
    assert "granted 'app' consume, produce" in [line.get("reason") for line in lines]
