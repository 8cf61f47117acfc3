"""docs/metrics.md lists every metric, with its kind and labels."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.admin import ORDERS, Admin

DOCUMENT = Path(__file__).parents[4] / "docs" / "metrics.md"
ROW = re.compile(r"^\| (`[^|]+) \| (gauge|counter|histogram|info) \| ([^|]*)\|", re.MULTILINE)
NOT_IN_THE_DOCUMENT = {"worker", "le"}
"""The label of every series, and the one that every histogram has."""


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of each metric, by name."""
    return {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for names, kind, labels in ROW.findall(DOCUMENT.read_text())
        for name in re.findall(r"`(\w+)`", names)
    }


def test_each_metric_is_in_the_document_with_its_kind(admin: Admin) -> None:
    text = admin("GET", "/metrics").body.decode()
    found = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    # The text format of Prometheus has no kind `info`.
    listed = {name: kind.replace("info", "gauge") for name, (kind, _) in documented().items()}
    assert {name: listed.get(name) for name in found} == found
    # Some figures of the process depend on the system.
    assert [name for name in listed if name not in found and not name.startswith("process_")] == []


def test_the_labels_of_each_series_are_those_of_the_document(admin: Admin) -> None:
    admin("PUT", ORDERS)
    admin("PUT", f"{ORDERS}/subscriptions/s")
    text = admin("GET", "/metrics").body.decode()
    listed = documented()
    series = re.findall(r"^(\w+?)(?:_bucket|_sum|_count|_created)?\{(.*)\} ", text, re.MULTILINE)
    seen = {
        name: set(re.findall(r'(\w+)="', labels)) - NOT_IN_THE_DOCUMENT
        for name, labels in series
        if name in listed
    }
    assert len(seen) > 20
    assert {name: listed[name][1] for name in seen} == seen
