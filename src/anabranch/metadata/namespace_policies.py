"""Policies of a namespace in Pulsar's form: retention, and creation of topics on first use."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.metadata.records import NamespaceRecord

MEGABYTE = 1024 * 1024


class Retention(NamedTuple):
    """Limits beyond which acknowledged messages of a topic are deleted; None is no limit."""

    time_s: float | None
    size_bytes: int | None = None


def retention(namespace: NamespaceRecord, default_s: float | None) -> Retention:
    """The retention of a namespace; `default_s` applies if its policy has no time."""
    policy = namespace.policies.get("retention_policies")
    given = policy if isinstance(policy, dict) else {}
    minutes, megabytes = given.get("retentionTimeInMinutes"), given.get("retentionSizeInMB")
    time_s = default_s
    if isinstance(minutes, int | float):
        time_s = None if minutes < 0 else minutes * 60.0
    # Pulsar refuses size 0 beside a time; ignoring the size loses no messages.
    if not isinstance(megabytes, int | float) or megabytes < 0 or (megabytes == 0 and time_s != 0):
        return Retention(time_s)
    return Retention(time_s, int(megabytes * MEGABYTE))


def creates_topics(namespace: NamespaceRecord, default: bool) -> bool:
    """Whether topics of a namespace are created on first use; `default` applies without a policy."""
    policy = namespace.policies.get("autoTopicCreationOverride")
    allowed = policy.get("allowAutoTopicCreation") if isinstance(policy, dict) else None
    return allowed if isinstance(allowed, bool) else default
