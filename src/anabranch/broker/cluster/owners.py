"""Finds the broker that serves a log or leads a topic, from the records of topics and the directory."""

from __future__ import annotations

from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.cluster.directory import Directory
from anabranch.errors import ServiceNotReadyError
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName


class TopicOwners:
    """The brokers of all topics, as far as this broker knows them."""

    def __init__(self, records: TopicStore, classic: ClassicTopics, directory: Directory) -> None:
        self._records = records
        self._classic = classic
        self._directory = directory

    def of_store(self, store: int) -> BrokerRecord | None:
        """The living broker that owns a store; None while it has no owner."""
        return self._directory.owner_of(store)

    async def owner_of(self, name: TopicName) -> BrokerRecord | None:
        """The broker that serves a log or leads a topic; None if any broker will do.

        Raises ServiceNotReadyError while the store of a log has no owner.
        """
        if name.domain == "persistent" or name.is_live:
            store = await self._classic.store_of(name)
        else:
            record = await self._records.find(name.topic)
            if record is None:
                return None
            if name.segment is None:
                return self._directory.owner_of(record.store)
            listed = record.segments.get(name.segment.id)
            if listed is None:
                return None
            store = listed.store
        owner = self._directory.owner_of(store)
        if owner is None:
            raise ServiceNotReadyError(f"{name} is in store {store}, which no broker serves now; retry soon")
        return owner
