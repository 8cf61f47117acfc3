"""Sends each owner of a segment the roster of the segment's readers, until the owner has taken it.

The shell around `admission`: it knows which owners must hear of a change, and repeats the call to an owner
that does not answer. A change does not fail for want of an owner: an owner without the newest roster asks the
leader when a consumer attaches. Must not know how members come and go, nor how consumers are notified.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

from anabranch.aio import in_batches
from anabranch.controller.decide import admission, groups
from anabranch.controller.decide.admission import Admission, Roster
from anabranch.controller.topic.events import Notify, RostersDue
from anabranch.controller.topic.leadership import Leadership
from anabranch.errors import AnabranchError, StaleTermError, in_words
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.drains import Ranges
from anabranch.model.layout import Layout

RESTRICT_S = 2.0
"""How long an owner may take to take a roster. One that is gone for good has lost its consumers too."""

SENT_AT_ONCE = 256
"""Thousands of subscriptions on many segments must not hold up whoever else waits for the event loop."""


class Rosters:
    """Who reads which segment, by what `records` say now; RostersDue asks for one more `send`."""

    def __init__(self, lead: Leadership, records: Mapping[str, SubscriptionRecord], notify: Notify) -> None:
        self._lead = lead
        self._records = records
        self._notify = notify
        self._due: dict[tuple[str, int], None] = {}
        """Subscription and segment."""
        self._unreached: dict[tuple[str, int], str] = {}
        """Those whose owner did not take it, and why; due again when the timer is up."""
        self._timer: asyncio.TimerHandle | None = None
        self._visited: dict[tuple[str, str], set[int]] = {}
        """Where each member may be attached."""
        self._slots: tuple[SubscriptionRecord, Layout, Mapping[int, Ranges]] | None = None
        """What is open in a layout by a record, as it was last found out."""

    def taken_over(self) -> None:
        """Everybody has to hear: whom the former leader let in where is not known, nor whom it told what.

        Where nothing is left to read it does not matter; who seeks there sends all away.
        """
        for sub, record in self._records.items():
            ids = self._lead.layout.segments.keys() - set(record.drained)
            self._due.update(dict.fromkeys((sub, id_) for id_ in sorted(ids)))
            for name in record.consumers:
                self._visited[sub, name] = set(ids)

    def admit(self, sub: str, segment_id: int, consumer_name: str, generation: int | None) -> Admission:
        """Let a consumer attach to a segment, or raise ConsumerBusyError."""
        record = self._records[sub]
        grant = admission.admit(record, segment_id, consumer_name, generation)
        if grant.member is None:
            return grant
        self._visited.setdefault((sub, grant.member), set()).add(segment_id)
        return dataclasses.replace(grant, roster=self._roster(record, segment_id))

    def changed(self, sub: str, before: SubscriptionRecord, after: SubscriptionRecord) -> None:
        """Note which owners must hear: of readers they lost or got, and of buckets that opened.

        An owner lets a new reader attach by its roster, without asking here; so each segment that a member
        reads counts as visited from now on.
        """
        touched = {
            *admission.taken(before, after),
            *admission.given(before, after),
            *self._opened(before, after),
        }
        for name, member in after.consumers.items():
            visited = self._visited.setdefault((sub, name), set())
            visited.update(held.segment_id for held in member.segments)
        for name in admission.left(before, after):
            touched |= self._visited.pop((sub, name), set())
        self._due.update(dict.fromkeys((sub, id_) for id_ in sorted(touched)))

    def layout_changed(self) -> None:
        """Forget segments that are no more."""
        for visited in self._visited.values():
            visited.intersection_update(self._lead.layout.segments)

    def forget(self, sub: str) -> None:
        """The subscription is deleted, and with it everybody's place."""
        self._visited = {key: visited for key, visited in self._visited.items() if key[0] != sub}

    def unreached(self, sub: str) -> dict[str, str]:
        """The segments whose owner does not know yet who reads there, and why, for people."""
        return {str(id_): why for (of, id_), why in sorted(self._unreached.items()) if of == sub}

    async def send(self) -> None:
        """Tell the owners that have to hear something; StaleTermError if one has heard of a newer leader."""
        due, self._due = self._due, {}
        await in_batches((self._restrict(*key) for key in due), SENT_AT_ONCE)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _opened(self, before: SubscriptionRecord, after: SubscriptionRecord) -> list[int]:
        """The segments of which other buckets are open than before."""
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
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._due.update(dict.fromkeys(self._unreached))
        self._unreached.clear()
        self._notify(RostersDue())
