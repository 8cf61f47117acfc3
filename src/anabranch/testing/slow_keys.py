"""Slow keys of a broker for tests: their entries are stored with a later delivery time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from anabranch.errors import AnabranchError
from anabranch.ledger.memory import MemoryLog, MemoryStorage
from anabranch.model.names import TopicName
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.frames import MESSAGE_BYTES_MAX, build_entry, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb


class SlowKey(NamedTuple):
    """A key of a topic, and how long each of its messages is held back."""

    topic: TopicName
    key: bytes
    hold_ms: int


class SlowKeys:
    """The keys that are slow now."""

    def __init__(self) -> None:
        self._slow: list[SlowKey] = []

    @contextmanager
    def slow(self, key: SlowKey) -> Iterator[None]:
        """Hold messages of a key back that are published inside the block."""
        self._slow.append(key)
        try:
            yield
        finally:
            self._slow.remove(key)

    def held(self, log: str, entry: bytes, now_ms: int) -> bytes:
        """The entry, with a later delivery time if a message in it has a slow key."""
        if not self._slow:
            return entry
        keys = keys_of(entry)
        name = TopicName.parse(log).partitioned_topic
        found = [one for one in self._slow if one.key in keys and one.topic in (name, name.topic)]
        if not found:
            return entry
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
        hold_ms = max(one.hold_ms for one in found)
        metadata.deliver_at_time = max(metadata.deliver_at_time, now_ms + hold_ms)
        return build_entry(metadata.SerializeToString(), entry[end:])


class HoldingStorage(MemoryStorage):
    """Logs in memory that hold slow keys back."""

    def __init__(self, keys: SlowKeys) -> None:
        super().__init__()
        self._keys = keys

    def _new_log(self, name: str, ledger_entries_max: int, ledger_age_max_ms: int) -> MemoryLog:
        return HoldingLog(name, self, ledger_entries_max, ledger_age_max_ms, self._keys)


class HoldingLog(MemoryLog):
    """One log."""

    def __init__(
        self,
        name: str,
        storage: MemoryStorage,
        ledger_entries_max: int,
        ledger_age_max_ms: int,
        keys: SlowKeys,
    ) -> None:
        super().__init__(name, storage, ledger_entries_max, ledger_age_max_ms)
        self._keys = keys

    def _stored_form(self, data: bytes, timestamp_ms: int) -> bytes:
        return self._keys.held(self.name, data, timestamp_ms)


def keys_of(entry: bytes) -> set[bytes | None]:
    """The keys of the messages in an entry; only the first one if the broker cannot open it."""
    try:
        return set(decode_columns(entry, MESSAGE_BYTES_MAX).keys)
    except AnabranchError:
        start, end = metadata_span(entry)
        return {pb.MessageMetadata.FromString(entry[start:end]).partition_key.encode()}
