"""A page of another site, in a real Chromium, tries to change and to read a broker on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch.admin.client import AdminClient
from simulation.harness.process import BrokerProcess
from tests.process.chromium import EvilSite, chromium, page_of

MakeBroker = Callable[..., BrokerProcess]

NAMESPACE = "/admin/v2/namespaces/public/precious"
TOPIC = "/admin/v2/scalable/public/default/orders"
NO_BODY, TEXT_BODY, BLOB_BODY = "", ", body: '{}'", ", body: new Blob(['{}'])"


class Victim:
    """A broker with a namespace and a topic of one segment, which an attack must leave alone."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.url = broker.http_url
        self.admin = AdminClient(broker.http_url)
        self.admin.call("PUT", NAMESPACE)
        self.admin.call("PUT", TOPIC)

    def check_unharmed(self) -> None:
        assert self.admin.call("GET", TOPIC)["epoch"] == 0
        assert "public/precious" in self.admin.call("GET", "/admin/v2/namespaces/public")


@pytest.fixture
def victim(make_broker: MakeBroker) -> Iterator[Victim]:
    found = Victim(make_broker(scalableTopicAutoScaleEnabled="false").start())
    yield found
    found.admin.close()


def attempts_at(site: str) -> list[str]:
    """The attempts of a page of another origin; those without a preflight reach the broker."""
    split = f"{site}{TOPIC}/split/0"

    def blind(rest: str) -> str:
        return f'() => fetch("{split}", {{method: "POST", mode: "no-cors"{rest}}}).then(r => r.type)'

    json = '{method: "POST", body: "{}", headers: {"content-type": "application/json"}}'
    return [
        f'"form", () => submit("{split}")',
        f'"no-cors", {blind(NO_BODY)}',
        f'"text", {blind(TEXT_BODY)}',
        f'"blob", {blind(BLOB_BODY)}',
        f'"beacon", () => navigator.sendBeacon("{split}")',
        f'"delete", () => fetch("{site}{NAMESPACE}", {{method: "DELETE"}}).then(r => r.status)',
        f'"json", () => fetch("{split}", {json}).then(r => r.status)',
        f'"read", () => fetch("{site}/admin/v2/namespaces/public").then(r => r.text())',
    ]


def test_a_page_of_another_site_changes_and_reads_nothing(victim: Victim, tmp_path: Path) -> None:
    # The unguarded site shows that the browser sends these requests.
    unguarded = EvilSite("")
    with unguarded.serve() as port:
        attempts = [*attempts_at(f"http://127.0.0.1:{port}"), *attempts_at(victim.url)]
        names = [f'"{n} {one[1:]}' for n, one in enumerate(attempts)]
        evil = EvilSite(page_of(*names))
        with (
            evil.serve() as evil_port,
            chromium(f"http://evil.test:{evil_port}/page", tmp_path / "profile", {"evil.test": "127.0.0.1"}),
        ):
            report = evil.report()
    assert len(report) == len(attempts)
    assert unguarded.reached.count(f"POST {TOPIC}/split/0") == 5
    assert report["0 form"] == report["8 form"] == "submitted"
    for name in ("13 delete", "14 json", "15 read"):
        assert report[name].startswith("error: TypeError"), report
    victim.check_unharmed()


def test_a_page_whose_name_leads_to_the_broker_changes_and_reads_nothing(
    victim: Victim, tmp_path: Path
) -> None:
    # The page comes from the attacker's address. Then its name has another address, that of the broker: the
    # origin of the page is that of the broker, and the browser lets the page send and read everything.
    page = page_of(
        '"tenants", () => fetch("/admin/v2/namespaces/public").then(r => r.text())',
        '"metrics", () => fetch("/metrics").then(r => r.status)',
        f'"delete", () => fetch("{NAMESPACE}", {{method: "DELETE"}}).then(r => r.status)',
        f'"split", () => fetch("{TOPIC}/split/0", {{method: "POST"}}).then(r => r.status)',
    )
    evil = EvilSite(page, forward_to=victim.broker.http_port)
    with (
        evil.serve("127.0.0.2", victim.broker.http_port) as port,
        chromium(f"http://rebind.test:{port}/page", tmp_path / "profile", {"rebind.test": "127.0.0.2"}),
    ):
        report = evil.report()
    assert "precious" not in report.pop("tenants")
    assert set(report.values()) == {"403"}, report
    victim.check_unharmed()


def test_a_person_may_look_at_the_broker_with_a_browser(victim: Victim, tmp_path: Path) -> None:
    seen = EvilSite(
        page_of(
            '"namespaces", () => fetch("/admin/v2/namespaces/public").then(r => r.text())',
            f'"split", () => fetch("{TOPIC}/split/0", {{method: "POST"}}).then(r => r.status)',
        ),
        forward_to=victim.broker.http_port,
    )
    # `localhost` is a name of the broker, and the page stands for one that the broker itself would serve.
    with (
        seen.serve("127.0.0.2", victim.broker.http_port) as port,
        chromium(f"http://localhost:{port}/page", tmp_path / "profile", {"localhost": "127.0.0.2"}),
    ):
        report = seen.report()
    assert "precious" in report["namespaces"]
    assert report["split"] == "204"
