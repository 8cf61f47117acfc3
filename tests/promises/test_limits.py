"""README: what is not there yet is refused with a reason, and every metric is documented."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.promises.installed import ROOT, WIRE, InstalledBroker

REFUSED: list[tuple[str, str, Any, str]] = [
    ("POST", "/admin/v2/namespaces/public/default/replication", ["east", "west"], "one cluster"),
    ("PUT", "/admin/v2/clusters/west", {"serviceUrl": "http://west:8080"}, "not replicated between clusters"),
    (
        "PUT",
        "/admin/v2/persistent/public/default/t/subscription/s?replicated=true",
        None,
        "cannot be replicated",
    ),
    ("POST", "/admin/v2/namespaces/public/default/persistence", {"bookkeeperEnsemble": 3}, "once"),
    ("PUT", "/admin/v2/scalable/public/default/limits/compaction", None, "pipeline compact"),
    ("GET", "/console", None, "there is no /console"),
]


@pytest.mark.parametrize(("method", "path", "body", "reason"), REFUSED, ids=[one[1] for one in REFUSED])
def test_what_is_not_there_yet_is_refused_with_a_reason(
    broker: InstalledBroker, method: str, path: str, body: Any, reason: str
) -> None:
    broker.ask("topic", "create", "limits")
    status, text = broker.request(method, path, body)
    assert 400 <= status < 500, text
    assert reason in json.loads(text)["reason"]


def test_transactions_are_refused_with_a_reason(broker: InstalledBroker) -> None:
    begin = """
answer = ask("newTxn", pb.BaseCommand.NEW_TXN, pb.CommandNewTxn(request_id=1))
print(json.dumps(str(answer)))
"""
    assert "transaction" in broker.run(WIRE + begin).lower()


def documented() -> set[str]:
    """The names in the first column of the table of docs/metrics.md."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_metrics_of_a_broker_are_those_of_the_document(broker: InstalledBroker) -> None:
    status, text = broker.request("GET", "/metrics")
    assert status == 200
    assert set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)) == documented()


def test_the_metrics_of_pip_483_are_there(broker: InstalledBroker) -> None:
    _, text = broker.request("GET", "/metrics")
    for name in (
        *("active_segments", "auto_splits_total", "auto_merges_total"),
        *("split_suppressed_max_segments_total", "merge_suppressed_max_depth_total"),
    ):
        assert f"# TYPE pulsar_scalable_topic_{name} " in text
