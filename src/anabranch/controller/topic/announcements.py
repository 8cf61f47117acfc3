"""Announces changes of subscriptions: rosters to the owners of segments, assignments to consumers.

Owners come first: when a consumer learns what it reads, the former readers of that segment can read no more.
Must not know why a subscription changed, nor how its record is stored.
"""

from __future__ import annotations

import asyncio

from anabranch.controller.decide import admission, groups
from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.topic.leadership import Leadership, Notify
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.rosters import Rosters
from anabranch.controller.topic.subscription_records import RecordChange, SubscriptionRecords
from anabranch.errors import ConsumerBusyError
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.assignment import Assignment


class Announcements:
    """The announcements of `records`, the subscriptions of one topic, to owners and `members`."""

    def __init__(
        self, lead: Leadership, records: SubscriptionRecords, members: Members, notify: Notify
    ) -> None:
        self._lead = lead
        self._records = records
        self._members = members
        self.rosters = Rosters(lead, records, notify)
        self._changed: dict[tuple[str, str], None] = {}
        """Consumers whose assignment changed, by subscription and name."""
        self._scheduled: set[int] = set()
        """The tokens of consumers that get their assignment in the next iteration of the event loop."""

    def note(self, change: RecordChange) -> None:
        """Remember which owners and consumers a change concerns; `send` announces it to them."""
        sub, before, after = change
        if after is None:
            if before is not None:
                self._members.dismiss(sub, self._nothing(before))
            self._members.fit(sub, {})
            self.rosters.forget(sub)
            return
        self.rosters.changed(sub, before or after, after)
        for hold in self._members.holds.all(sub):
            if before is None or before.consumers.get(hold.name) != after.consumers.get(hold.name):
                self._changed[sub, hold.name] = None

    async def announce(self, change: RecordChange) -> None:
        self.note(change)
        await self.send()

    async def send(self) -> None:
        """Send the rosters that are due, then push the assignments that changed."""
        changed, self._changed = self._changed, {}
        try:
            await self.rosters.send()
        finally:
            for sub, name in changed:
                self._push_soon(sub, name)

    def topic_deleted(self) -> None:
        """Tell every consumer that it reads nothing, and to register again in case the topic is recreated."""
        for sub, record in self._records.items():
            self._members.dismiss(sub, self._nothing(record), register_again=True)

    def admit(self, sub: str, request: AttachRequest) -> Admission:
        """Let a consumer attach to a segment of a stream, or raise ConsumerBusyError.

        A member that does not read the segment gets its assignment again, since it seems to have missed one.
        """
        name = admission.member_name(self._records[sub], request.segment_id, request.consumer_name)
        try:
            admitted = self.rosters.admit(sub, request)
        except ConsumerBusyError:
            if name is not None:
                self._push_soon(sub, name)
            raise
        if name is not None and admitted.roster is not None and not admitted.roster.reads(name):
            self._push_soon(sub, name)
        return admitted

    def remind(self, sub: str) -> None:
        """Push assignments again to clients of other vendors, which drop one that arrives too early."""
        for name, member in self._records.existing(sub).consumers.items():
            if member.whole:
                self._push_soon(sub, name)

    def assignment(self, sub: str, name: str) -> Assignment:
        return groups.assignment(self._records[sub], self._lead.layout, self._lead.name, name)

    def _push_soon(self, sub: str, name: str) -> None:
        """Push an assignment once, however often it changes before the event loop comes round."""
        hold = self._members.holds.named(sub, name)
        if hold is not None and hold.connected and hold.token not in self._scheduled:
            self._scheduled.add(hold.token)
            asyncio.get_running_loop().call_soon(self._push, sub, name, hold.token)

    def _push(self, sub: str, name: str, token: int) -> None:
        self._scheduled.discard(token)
        if sub in self._records:
            self._members.push(token, self.assignment(sub, name))

    def _nothing(self, record: SubscriptionRecord) -> Assignment:
        return Assignment(self._lead.layout.epoch, record.generation + 1)
