"""Announces changes of subscriptions: rosters to the owners of segments, assignments to consumers.

Owners come first: when a consumer learns what it reads, the former readers of that segment can no longer read
it. A change does not fail because an owner is unreachable: the call is repeated, and an owner without the
newest roster asks the leader when a consumer attaches. This module does not know why a subscription changed,
nor how its record is stored.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

from anabranch.aio import in_batches
from anabranch.controller.decide import admission, groups
from anabranch.controller.decide.admission import Admission, AttachRequest, Roster
from anabranch.controller.topic.leadership import Happened, Leadership, Notify
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.subscription_records import RecordChange, SubscriptionRecords
from anabranch.errors import AnabranchError, ConsumerBusyError, StaleTermError, in_words
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.assignment import Assignment
from anabranch.model.drains import Ranges
from anabranch.model.layout import Layout

RESTRICT_S = 2.0
"""How long an owner may take to accept a roster. An owner that is gone for good has lost its consumers
too."""

SENT_AT_ONCE = 256
"""How many rosters are sent concurrently. Thousands at once would block the event loop for other tasks."""


class Announcements:
    """Announces changes of `records`, the subscriptions of one topic, to owners and `members`."""

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
        """Remember which owners and consumers a change affects, so that `send` can tell them."""
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
        """Let a consumer attach, or raise ConsumerBusyError. A member that missed its assignment gets it."""
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

    def _push_soon(self, sub: str, name: str) -> None:
        """Push an assignment once, however often it changes before the next iteration of the event loop."""
        hold = self._members.holds.named(sub, name)
        if hold is not None and hold.connected and hold.token not in self._scheduled:
            self._scheduled.add(hold.token)
            asyncio.get_running_loop().call_soon(self._push, sub, name, hold.token)

    def _push(self, sub: str, name: str, token: int) -> None:
        self._scheduled.discard(token)
        record = self._records.get(sub)
        if record is not None:
            found = groups.assignment(record, self._lead.layout, self._lead.name, name)
            self._members.push(token, found)

    def _nothing(self, record: SubscriptionRecord) -> Assignment:
        return Assignment(self._lead.layout.epoch, record.generation + 1)


class Rosters:
    """The rosters of each segment, made from `records`. After ROSTERS_DUE the caller runs `send` again."""

    def __init__(self, lead: Leadership, records: Mapping[str, SubscriptionRecord], notify: Notify) -> None:
        self._lead = lead
        self._records = records
        self._notify = notify
        self._due: dict[tuple[str, int], None] = {}
        """Rosters to send, by subscription and segment."""
        self._unreached: dict[tuple[str, int], str] = {}
        """Rosters that the owner did not accept, and why. They are due again when the timer fires."""
        self._timer: asyncio.TimerHandle | None = None
        self._visited: dict[tuple[str, str], set[int]] = {}
        """The segments that each member may be attached to."""
        self._slots: tuple[SubscriptionRecord, Layout, Mapping[int, Ranges]] | None = None
        """The open slots of the last record and layout, kept because finding them walks the whole layout."""

    def taken_over(self) -> None:
        """Plan rosters for all owners, because the readers that the former leader admitted are unknown.

        Drained segments need none: nothing is left to read, and a seek disconnects all their consumers.
        """
        for sub, record in self._records.items():
            ids = self._lead.layout.segments.keys() - set(record.drained)
            self._due.update(dict.fromkeys((sub, id_) for id_ in sorted(ids)))
            for name in record.consumers:
                self._visited[sub, name] = set(ids)

    def admit(self, sub: str, request: AttachRequest) -> Admission:
        """Let a consumer attach to a segment, or raise ConsumerBusyError."""
        record = self._records[sub]
        admitted = admission.admit(record, request)
        if admitted.member is None:
            return admitted
        self._visited.setdefault((sub, admitted.member), set()).add(request.segment_id)
        return dataclasses.replace(admitted, roster=self._roster(record, request.segment_id))

    def changed(self, sub: str, before: SubscriptionRecord, after: SubscriptionRecord) -> None:
        """Plan rosters for the owners whose readers changed, and for those with newly open buckets.

        An owner admits a new reader by its roster, without asking the leader, so each segment that a member
        reads counts as visited from now on.
        """
        touched = admission.reassigned(before, after) | set(self._opened(before, after))
        for name in admission.left(before, after):
            touched |= self._visited.pop((sub, name), set())
        for name, member in after.consumers.items():
            visited = self._visited.setdefault((sub, name), set())
            visited.update(held.segment_id for held in member.segments)
        self._due.update(dict.fromkeys((sub, id_) for id_ in sorted(touched)))

    def layout_changed(self) -> None:
        """Forget segments that the layout has dropped."""
        for visited in self._visited.values():
            visited.intersection_update(self._lead.layout.segments)

    def forget(self, sub: str) -> None:
        self._visited = {key: visited for key, visited in self._visited.items() if key[0] != sub}

    def unreached(self, sub: str) -> dict[str, str]:
        """Return the segments whose owner did not accept the newest roster, and why, for operators."""
        return {str(id_): why for (of, id_), why in sorted(self._unreached.items()) if of == sub}

    async def send(self) -> None:
        """Send the planned rosters. Raises StaleTermError if an owner knows a newer leader."""
        due, self._due = self._due, {}
        await in_batches((self._restrict(*key) for key in due), SENT_AT_ONCE)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _opened(self, before: SubscriptionRecord, after: SubscriptionRecord) -> list[int]:
        known = groups.open_by_buckets(before, self._lead.layout)
        found = groups.open_by_buckets(after, self._lead.layout)
        return [id_ for id_, buckets in found.items() if known.get(id_, buckets) != buckets]

    def _roster(self, record: SubscriptionRecord, segment_id: int) -> Roster:
        layout = self._lead.layout
        if self._slots is None or self._slots[0] is not record or self._slots[1] is not layout:
            self._slots = record, layout, groups.slots_of(record, layout)
        buckets = groups.open_for(record, layout, segment_id, self._slots[2])
        known = admission.roster(record, segment_id)
        return dataclasses.replace(known, open=buckets, incarnation=self._lead.record.incarnation)

    async def _restrict(self, sub: str, segment_id: int) -> None:
        record, segment = self._records.get(sub), self._lead.layout.segments.get(segment_id)
        if record is None or segment is None or record.type != "STREAM":
            return
        place, roster = self._lead.place(segment), self._roster(record, segment_id)
        try:
            async with asyncio.timeout(RESTRICT_S):
                await self._lead.context.segments.restrict(place, sub, roster, self._lead.term)
        except StaleTermError:
            raise
        except (AnabranchError, TimeoutError) as error:
            self._unreached[sub, segment_id] = in_words(error)
            if self._timer is None:
                delay_s = self._lead.context.jitter_s(self._lead.context.settings.retry_max_s / 5)
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._send_again)

    def _send_again(self) -> None:
        self._timer = None
        self._due.update(dict.fromkeys(self._unreached))
        self._unreached.clear()
        self._notify(Happened.ROSTERS_DUE)
