"""The data directory of a broker that has ended, and keys that reach all segments of a topic."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from anabranch.clock import SystemClock
from anabranch.data.directory import METADATA_FILE
from anabranch.ledger.disks.os_disk import OsDisk
from anabranch.ledger.file_storage import FileStorage
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.sqlite.sqlite_store import SqliteStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.hashing import key_hash
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

NAMESPACE = "public/default"


def keys_over_the_ring(slots: int) -> list[str]:
    """Return a key in each of this many equal parts of the hash ring."""
    found: dict[int, str] = {}
    for number in itertools.count():
        found.setdefault(key_hash(f"key-{number}") * slots >> 32, f"key-{number}")
        if len(found) == slots:
            return [found[slot] for slot in range(slots)]
    raise AssertionError


@dataclass(frozen=True)
class FoundLog:
    """A log, as the process left it."""

    sealed: bool
    cursors: frozenset[str]


@dataclass(frozen=True)
class StoredTopic:
    """The records of a topic that is not deleted."""

    layout: Layout
    subscriptions: frozenset[str]
    at_work: bool
    """Whether an operation, or a change of a subscription, is not finished."""


async def stored_logs(data: Path) -> dict[str, FoundLog]:
    """All logs of all stores, by name."""
    found: dict[str, FoundLog] = {}
    for root in sorted(data.glob("stores/*")) or [data]:
        storage = FileStorage(OsDisk(root), clock=SystemClock())
        await storage.open()
        for name in storage.names():
            log = storage.get(name)
            assert log is not None
            assert name not in found, f"{name} is in two stores"
            found[name] = FoundLog(log.sealed, frozenset(log.cursors))
        await storage.close()
    return found


async def stored_topics(data: Path) -> tuple[dict[TopicName, StoredTopic], set[str]]:
    """All topics by name, and everything that is listed as garbage."""
    store = SqliteStore(data / METADATA_FILE)
    topics = TopicStore(store)
    found: dict[TopicName, StoredTopic] = {}
    garbage: set[str] = set()
    for name, record in await topics.load_all(NAMESPACE):
        subscriptions = await topics.load_subscriptions(name)
        at_work = record.intent is not None or any(sub.unfinished for sub in subscriptions.values())
        if not record.deleted:
            having = frozenset(sub for sub, it in subscriptions.items() if it.initial_position is not None)
            found[name] = StoredTopic(layout_of(record), having, at_work)
        garbage |= {item.name for item in record.garbage}
    for _, lineage in await topics.load_lineages(NAMESPACE):
        garbage |= {item.name for item in lineage.garbage}
    await store.close()
    return found, garbage


async def check_stored(data: Path) -> dict[TopicName, StoredTopic]:
    """Records and storage agree: each segment has its log and cursors, and nothing else is there."""
    topics, garbage = await stored_topics(data)
    assert not garbage
    logs = await stored_logs(data)
    named = {
        str(name.segment_name(segment.range, segment.id)): (topic, segment)
        for name, topic in topics.items()
        for segment in topic.layout.segments.values()
    }
    assert set(logs) == set(named)
    for name, (topic, segment) in named.items():
        assert not topic.at_work, name
        assert logs[name].sealed == (not segment.active), name
        assert logs[name].cursors == topic.subscriptions, name
    return topics
