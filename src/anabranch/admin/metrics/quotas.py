"""The figures of quotas: refusals by policy, and how often and how much waits for a rate."""

from __future__ import annotations

from anabranch.admin.metrics.tables import Column, Table, label
from anabranch.broker.broker import Broker

_REFUSALS = (Column("anabranch_quota_refusals_total", "counter", "Requests refused because of a quota."),)
_RATES = (
    Column("anabranch_rate_holds_total", "counter", "How often a connection or subscription had to wait."),
    Column("anabranch_rate_held", "gauge", "Connections or subscriptions that wait for the rate now."),
    Column("anabranch_rate_share", "gauge", "Share of the rate that this worker may use."),
)


def quota_tables(broker: Broker) -> tuple[Table, ...]:
    """Return the tables of one scrape; a rate has a row while a topic or tenant with this limit is served."""
    refusals, rates = Table(*_REFUSALS), Table(*_RATES)
    for (policy, tenant), count in sorted(broker.quotas.book.refusals.items()):
        refusals.add(f"{label('policy', policy)},{label('tenant', tenant)}", count)
    for gate in broker.quotas.book.throttles.gates():
        if broker.config.topic_metrics or gate.of.startswith("tenant "):
            labels = f"{label('policy', gate.policy)},{label('of', gate.of)}"
            rates.add(labels, gate.waits, gate.waiting, gate.share)
    return refusals, rates
