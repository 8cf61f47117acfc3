"""The operations on the subscriptions of one topic: create, delete, move, drain, follow the layout.

This is the shell around the pure `decide.groups`, and runs in the change queue. It does not know how layouts
are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from anabranch.aio import in_batches
from anabranch.controller.decide import groups
from anabranch.controller.ports.segments import Drained
from anabranch.controller.topic.announcements import Announcements
from anabranch.controller.topic.cursors import Cursors
from anabranch.controller.topic.leadership import Happened, Leadership, Notify
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.subscription_records import SubscriptionRecords
from anabranch.errors import (
    ConflictError,
    ConsumerBusyError,
    NotAllowedError,
    StaleTermError,
    SubscriptionNotFoundError,
    in_words,
)
from anabranch.metadata.records import InitialPosition, SubscriptionKind, SubscriptionRecord, UnfinishedRecord
from anabranch.model.names import validate_subscription

replace = msgspec.structs.replace

SETTLED_AT_ONCE = 32
"""How many subscriptions follow a layout concurrently. They share the commits of the metadata store."""


class Subscriptions:
    """All subscriptions of the topic that `lead` leads."""

    def __init__(
        self,
        lead: Leadership,
        records: SubscriptionRecords,
        members: Members,
        announcements: Announcements,
        notify: Notify,
    ) -> None:
        self.records = records
        self.load_by_segment: Mapping[int, float] = {}
        self.troubles: dict[str, str] = {}
        """Why each of these subscriptions could not be finished, or could not follow the layout."""
        self._lead = lead
        self._cursors = Cursors(lead)
        self._members = members
        self._announcements = announcements
        self._notify = notify
        self._stale: dict[str, None] = {}
        """Subscriptions that do not follow the newest layout yet."""
        self._drains: dict[str, set[int]] = {}

    @property
    def unfinished(self) -> bool:
        """Whether a recorded operation on a subscription is not finished."""
        return any(record.unfinished is not None for record in self.records.values())

    async def load(self) -> None:
        """Take over the stored subscriptions in this term. Their consumers get a full grace period."""
        await self.records.claim_all()
        self._announcements.rosters.taken_over()
        self._restore()

    async def reload(self) -> None:
        """Read all records again, after a write whose outcome is unknown."""
        for change in await self.records.read_all():
            self._announcements.note(change)
        self._restore()
        await self._announcements.send()

    def _restore(self) -> None:
        for sub, record in sorted(self.records.items()):
            self._members.fit(sub, record.consumers)
        self.layout_changed()

    def layout_changed(self) -> None:
        """Let `settle` examine the drained segments and assignments of all subscriptions again."""
        self._announcements.rosters.layout_changed()
        self._stale = dict.fromkeys(sorted(self.records))

    async def settle(self) -> bool:
        """Finish interrupted operations and follow the layout.

        Returns False if a subscription needs a retry.
        """
        await self._announcements.send()
        unfinished = (sub for sub, record in self.records.items() if record.unfinished is not None)
        due = sorted({*unfinished, *self._stale, *self.troubles} & self.records.keys())
        await in_batches((self._settle(sub) for sub in due), SETTLED_AT_ONCE)
        self.troubles = {sub: why for sub, why in self.troubles.items() if sub in self.records}
        return not self.troubles

    async def _settle(self, sub: str) -> None:
        try:
            if self.records[sub].unfinished is not None:
                await self._finish(sub)
            if sub in self._stale and sub in self.records:
                await self._follow_layout(sub)
            self._stale.pop(sub, None)
            self.troubles.pop(sub, None)
        except StaleTermError:
            raise
        except Exception as error:
            # One failing subscription must not delay the others, but its record must be known.
            self.troubles[sub] = in_words(error)
            await self._announcements.announce(await self.records.read(sub))

    def is_ready(self, sub: str, kind: SubscriptionKind) -> bool:
        """Return whether the subscription is already on all segments, or needs to be on none."""
        record = self.records.get(sub)
        if record is None or record.unfinished is not None or record.type != kind:
            return False
        return kind == "CHECKPOINT" or record.initial_position is not None

    def for_new(self) -> dict[str, InitialPosition]:
        """Return the subscriptions that a new segment gets at its start.

        Unfinished creations add theirs later.
        """
        return {
            sub: "earliest"
            for sub, record in sorted(self.records.items())
            if groups.has_cursors(record)
            and (record.unfinished is None or record.unfinished.kind in ("seek", "skip"))
        }

    async def ensure(
        self, sub: str, kind: SubscriptionKind, start: InitialPosition | None, opened_in: int | None = None
    ) -> None:
        """Register the subscription and create it on the segments that do not have it yet.

        Raises SubscriptionNotFoundError if it was deleted after a caller opened it in this incarnation of the
        topic.
        """
        validate_subscription(sub)
        if sub in self.records and self.records[sub].unfinished is not None:
            await self._finish(sub)
        if sub not in self.records:
            if opened_in == self._lead.record.incarnation:
                raise SubscriptionNotFoundError(
                    f"subscription {sub} of {self._lead.name} was deleted; open it again to start over"
                )
            await self._lead.context.admit_subscription(self._lead.name, len(self.records))
            await self._create(sub, self._new(kind), start)
            return
        record = self.records[sub]
        if record.type != kind:
            record = await self._change_kind(sub, record, kind)
        if start is not None and not groups.has_cursors(record):
            await self._create(sub, record, start)

    async def adopt(self, sub: str, kind: SubscriptionKind) -> None:
        """Register a subscription that all segments already have."""
        if sub not in self.records:
            new = replace(self._new(kind), initial_position="earliest")
            await self._announcements.announce(await self.records.store(sub, lambda _: new))

    def _new(self, kind: SubscriptionKind) -> SubscriptionRecord:
        now_ms = self._lead.context.clock.wall_ms()
        return SubscriptionRecord(type=kind, term=self._lead.term, created_at_ms=now_ms)

    async def _create(self, sub: str, record: SubscriptionRecord, start: InitialPosition | None) -> None:
        if record.type != "CHECKPOINT" and start is not None:
            record = replace(
                record, initial_position=start, unfinished=UnfinishedRecord(kind="create"), drained=()
            )
            if start == "latest":
                sealed = [segment.id for segment in self._lead.layout.sealed]
                record = groups.rewind(record, self._lead.layout, sealed, self.load_by_segment)
        await self._announcements.announce(await self.records.store(sub, lambda _: record))
        # No term fences a new record yet. Either this read finds a newer leader, or that leader finds the
        # record, since a leader raises the topic's term before it reads subscriptions.
        await self._lead.reload()
        await self._reach("create.recorded")
        if record.unfinished is not None:
            await self._finish(sub)

    async def _change_kind(
        self, sub: str, record: SubscriptionRecord, kind: SubscriptionKind
    ) -> SubscriptionRecord:
        # Queue consumers do not register, and stream consumers would wait for them forever.
        if record.consumers or (record.type == "QUEUE" and await self._cursors.in_use(sub)):
            raise ConsumerBusyError(
                f"subscription {sub} has {record.type} consumers; close them before using it as {kind}"
            )
        if kind == "CHECKPOINT":
            raise ConflictError(
                f"{sub} is a {record.type} subscription; choose another name for the checkpoint group"
            )
        return await self.save(sub, lambda found: replace(found, type=kind))

    async def delete(self, sub: str, *, force: bool, created_at_ms: int | None = None) -> None:
        """Remove the subscription, if created then.

        Raises ConsumerBusyError while it is in use, unless forced.
        """
        known = self.records.get(sub)
        if created_at_ms is not None and (known is None or known.created_at_ms != created_at_ms):
            return
        record = self.records.existing(sub)
        if not force and any(hold.connected for hold in self._members.holds.all(sub)):
            raise ConsumerBusyError(f"subscription {sub} has connected consumers; close them first")
        if record.unfinished is not None:
            await self._finish(sub)
        await self.save(sub, lambda found: replace(found, unfinished=UnfinishedRecord(kind="delete")))
        await self._reach("delete.recorded")
        await self._finish(sub)

    async def move(self, sub: str, how: UnfinishedRecord) -> None:
        """Move cursors, on one segment or all. After a seek, children wait for their parents again."""
        if how.segment_id is not None:
            self._lead.layout.segment(how.segment_id)
        record = self.records.existing(sub)
        if record.type == "CHECKPOINT":
            raise NotAllowedError(f"{sub} is a checkpoint group; its members keep their own positions")
        if record.unfinished is not None:
            await self._finish(sub)

        def begin(found: SubscriptionRecord) -> SubscriptionRecord:
            moving = replace(found, unfinished=how)
            if how.kind == "skip":
                return moving
            # Take children away before their parents are rewound: no reader may be ahead of a parent.
            return groups.read_again(moving, self._lead.layout, how.segment_id, self.load_by_segment)

        await self.save(sub, begin)
        await self._reach(f"{how.kind}.recorded")
        await self._finish(sub)

    async def _finish(self, sub: str) -> None:
        """Carry out on every segment what the record lists as unfinished. Repeating it does no harm."""
        record = self.records[sub]
        unfinished = record.unfinished
        assert unfinished is not None
        await self._cursors.carry_out(sub, record)
        await self._reach(f"{unfinished.kind}.applied")
        if unfinished.kind == "delete":
            self._announcements.note(await self.records.delete(sub))
            return
        drained, parts = await self._cursors.drained(sub, self.records[sub])
        await self.save(
            sub,
            lambda found: groups.drain(
                replace(found, unfinished=None), self._lead.layout, drained, self.load_by_segment, parts
            ),
        )

    def report_drained(self, event: Drained) -> None:
        """Note an owner's report, which `take_drains` handles in turn."""
        segment = self._lead.find(event.segment)
        if segment is not None:
            self._drains.setdefault(event.subscription, set()).add(segment.id)
            self._notify(Happened.DRAINS_REPORTED)

    async def take_drains(self) -> None:
        """Record what owners have reported as drained."""
        reported, self._drains = self._drains, {}
        known = [sub for sub in sorted(reported) if sub in self.records]
        await in_batches((self._follow_layout(sub, reported[sub]) for sub in known), SETTLED_AT_ONCE)

    async def _follow_layout(self, sub: str, only: Collection[int] | None = None) -> None:
        """Record what is drained by now, and assign the segments again."""
        if self.records[sub].unfinished is not None:
            return
        drained, parts = await self._cursors.drained(sub, self.records[sub], only)
        await self.save(
            sub, lambda found: groups.drain(found, self._lead.layout, drained, self.load_by_segment, parts)
        )

    async def save(
        self, sub: str, change: Callable[[SubscriptionRecord], SubscriptionRecord]
    ) -> SubscriptionRecord:
        """Store what `change` makes of the record and announce it.

        Raises SubscriptionNotFoundError without one.
        """
        await self._announcements.announce(await self.records.save(sub, change))
        return self.records[sub]

    async def _reach(self, step: str) -> None:
        await self._lead.context.failpoints.reach(f"subscription.{step}")
