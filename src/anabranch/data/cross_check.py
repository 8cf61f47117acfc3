"""Compares the records of topics with the logs of the stores. Pure.

A recorded operation, or an unfinished change of a subscription, explains any difference: the next leader of
the topic finishes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from anabranch.metadata import records
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import ClassicTopicRecord, LineageRecord, SubscriptionRecord, TopicRecord
from anabranch.metadata.sqlite.record_log_format import RecordState
from anabranch.model.names import Domain, TopicName, decode_part

SUBSCRIPTION_DEPTH = 6
"""Slashes in the path of a subscription: /topics/tenant/namespace/topic/subscriptions/name."""


class LogView(NamedTuple):
    """A log as its store has it."""

    sealed: bool
    subscriptions: frozenset[str]


StoredLogs = Mapping[int, Mapping[str, LogView]]
"""The logs by store and name; stores that cannot be read are left out."""


def cross_check(state: RecordState, logs: StoredLogs) -> list[str]:
    """One sentence for each place where records and logs disagree."""
    named: set[str] = set()
    found: list[str] = []
    subscribed = _subscribed(state)
    for name, value in _below(state, records.TOPICS, "topic"):
        record = records.decode(TopicRecord, value)
        named.update(_names(name, record))
        if not record.deleted and record.intent is None:
            found += _of_topic(name, record, subscribed.get(records.subscriptions_path(name), set()), logs)
    for name, value in _below(state, records.CLASSIC_TOPICS, "persistent"):
        count = records.decode(ClassicTopicRecord, value).partitions
        named.update([str(name)] if not count else (str(name.partition_name(at)) for at in range(count)))
    for _, value in _below(state, records.LINEAGES, "topic"):
        named.update(item.name for item in records.decode(LineageRecord, value).garbage)
    for store, stored in sorted(logs.items()):
        strays = sorted(stored.keys() - named)
        found += [f"store {store} has the log {stray}, which no topic names" for stray in strays]
    return found


def _of_topic(name: TopicName, record: TopicRecord, subscribed: set[str], logs: StoredLogs) -> Iterator[str]:
    for segment in layout_of(record).segments.values():
        log_name = segment.legacy_topic or str(name.segment_name(segment.range, segment.id))
        if segment.store not in logs:
            continue
        log = logs[segment.store].get(log_name)
        if log is None:
            yield f"{name}: store {segment.store} has no log of segment {segment.id}"
        elif log.sealed and segment.active:
            yield f"{name}: the log of active segment {segment.id} is sealed; the next start replaces it"
        elif not log.sealed and not segment.active:
            yield f"{name}: the log of sealed segment {segment.id} is not sealed"
        elif segment.active and (missing := subscribed - log.subscriptions):
            yield f"{name}: segment {segment.id} lacks the subscriptions {', '.join(sorted(missing))}"


def _names(name: TopicName, record: TopicRecord) -> Iterator[str]:
    """All logs that the record of a topic names."""
    for segment in layout_of(record).segments.values():
        yield segment.legacy_topic or str(name.segment_name(segment.range, segment.id))
    yield from (item.name for item in record.garbage)
    if record.intent is not None:
        yield from record.intent.child_names


def _below(state: RecordState, root: str, domain: Domain) -> Iterator[tuple[TopicName, bytes]]:
    """The topics with a record directly below `root`."""
    for path, kept in sorted(state.records.items()):
        parts = path.removeprefix(f"{root}/").split("/")
        if path.startswith(f"{root}/") and len(parts) == 3:
            tenant, namespace, local = map(decode_part, parts)
            yield TopicName(domain, tenant, namespace, local), kept.value


def _subscribed(state: RecordState) -> dict[str, set[str]]:
    """The subscriptions that have cursors on all active segments, by the path above their records."""
    found: dict[str, set[str]] = {}
    for path, kept in state.records.items():
        above, _, part = path.rpartition("/")
        if path.startswith(f"{records.TOPICS}/") and path.count("/") == SUBSCRIPTION_DEPTH:
            record = records.decode(SubscriptionRecord, kept.value)
            if record.initial_position and record.type != "CHECKPOINT" and record.unfinished is None:
                found.setdefault(above, set()).add(decode_part(part))
    return found
