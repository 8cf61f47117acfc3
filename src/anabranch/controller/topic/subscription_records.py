"""The stored subscriptions of one topic, as their leader last read or wrote them.

Every write is a compare-and-set that checks the leader's term. This module does not know what subscriptions
do, nor which consumers and owners have to be told of a change: callers get each change as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from anabranch.aio import together
from anabranch.controller.topic.leadership import Leadership
from anabranch.errors import StaleTermError, SubscriptionNotFoundError
from anabranch.metadata.records import SubscriptionRecord


class RecordChange(NamedTuple):
    """One subscription before and after a read or a write; None where the subscription does not exist."""

    subscription: str
    before: SubscriptionRecord | None
    after: SubscriptionRecord | None


class SubscriptionRecords(Mapping[str, SubscriptionRecord]):
    """The records of the topic that `lead` leads, by subscription name."""

    def __init__(self, lead: Leadership) -> None:
        self._lead = lead
        self._records: dict[str, SubscriptionRecord] = {}

    def __getitem__(self, sub: str) -> SubscriptionRecord:
        return self._records[sub]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def existing(self, sub: str) -> SubscriptionRecord:
        """Return the record of `sub`. Raises SubscriptionNotFoundError if there is none."""
        record = self._records.get(sub)
        if record is None:
            raise self._unknown(sub)
        return record

    async def claim_all(self) -> None:
        """Read all records and write this leader's term into each.

        Raises StaleTermError if one has a newer term.
        """
        found = await self._lead.context.topics.load_subscriptions(self._lead.name)
        await together(self._claim(sub) for sub in found)

    async def _claim(self, sub: str) -> None:
        def claim(found: SubscriptionRecord | None) -> SubscriptionRecord:
            if found is None or found.term > self._lead.term:
                raise StaleTermError(f"subscription {sub} of {self._lead.name} was changed by a newer leader")
            return msgspec.structs.replace(found, term=self._lead.term)

        topics = self._lead.context.topics
        self._records[sub] = await topics.update_subscription(self._lead.name, sub, claim)

    async def read_all(self) -> list[RecordChange]:
        """Read all records, after a write whose outcome is unknown."""
        found = await self._lead.context.topics.load_subscriptions(self._lead.name)
        for record in found.values():
            self._lead.check_term(record.term)
        gone = [sub for sub in self._records if sub not in found]
        return [self._install(sub, found.get(sub)) for sub in (*gone, *found)]

    async def read(self, sub: str) -> RecordChange:
        """Read one record, after a write whose outcome is unknown."""
        record = await self._lead.context.topics.load_subscription(self._lead.name, sub)
        if record is not None:
            self._lead.check_term(record.term)
        return self._install(sub, record)

    async def store(
        self, sub: str, change: Callable[[SubscriptionRecord | None], SubscriptionRecord]
    ) -> RecordChange:
        """Write what `change` makes of the stored record, or of None if there is none."""

        def fenced(found: SubscriptionRecord | None) -> SubscriptionRecord:
            if found is not None:
                self._lead.check_term(found.term)
            return change(found)

        record = await self._lead.context.topics.update_subscription(self._lead.name, sub, fenced)
        return self._install(sub, record)

    async def save(
        self, sub: str, change: Callable[[SubscriptionRecord], SubscriptionRecord]
    ) -> RecordChange:
        """Write what `change` makes of the stored record. Raises SubscriptionNotFoundError without one."""

        def existing(found: SubscriptionRecord | None) -> SubscriptionRecord:
            if found is None:
                raise self._unknown(sub)
            return change(found)

        return await self.store(sub, existing)

    async def delete(self, sub: str) -> RecordChange:
        await self._lead.context.topics.delete_subscription(
            self._lead.name, sub, lambda found: self._lead.check_term(found.term)
        )
        return self._install(sub, None)

    def _install(self, sub: str, record: SubscriptionRecord | None) -> RecordChange:
        before = self._records.pop(sub, None) if record is None else self._records.get(sub)
        if record is not None:
            self._records[sub] = record
        return RecordChange(sub, before, record)

    def _unknown(self, sub: str) -> SubscriptionNotFoundError:
        return SubscriptionNotFoundError(f"{self._lead.name} has no subscription {sub}")
