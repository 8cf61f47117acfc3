"""Leads one topic: takes requests and events, and passes each on as a change to the topic's change queue.

A split goes forward from here: `decide.operation` plans it, `ChangeRunner` queues it, `LayoutChanges` sends
the commands to segments and commits the layout by compare-and-set, `LayoutWatches` passes the layout on. The
controller knows segments only through their port. It never assumes that a write without an answer failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from anabranch.aio import weakly
from anabranch.controller.decide import operation
from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.decide.operation import LayoutVersion, RequestedChange
from anabranch.controller.decide.registration_request import PLAIN_REQUEST, RegistrationRequest
from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.ports.leader import Membership, Push
from anabranch.controller.ports.segments import Aim, Drained
from anabranch.controller.topic import reports
from anabranch.controller.topic.announcements import Announcements
from anabranch.controller.topic.change_queue import ChangeRunner
from anabranch.controller.topic.layout_changes import LayoutChanges
from anabranch.controller.topic.leadership import GraceOver, Happened, Leadership, TopicEvent
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.registrations import Registrations
from anabranch.controller.topic.scaling import Scaling
from anabranch.controller.topic.subscription_records import SubscriptionRecords
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.controller.topic.upkeep import Upkeep
from anabranch.errors import ConsumerBusyError, NotLeaderError, TopicNotFoundError
from anabranch.metadata.layouts import with_properties
from anabranch.metadata.records import (
    AimRecord,
    InitialPosition,
    IntentRecord,
    PolicyFields,
    SubscriptionKind,
    TopicRecord,
    UnfinishedRecord,
)
from anabranch.model.layout import Layout
from anabranch.model.limits import check_properties
from anabranch.model.names import TopicName

replace = msgspec.structs.replace


class TopicController:
    """The leader of one topic, as its port `TopicLeader` documents.

    Calls `lost` when it no longer leads the topic.
    """

    def __init__(
        self,
        lead: Leadership,
        watches: LayoutWatches,
        tokens: Iterator[int],
        lost: Callable[[TopicController], None],
        unused: Callable[[TopicController], None] = lambda controller: None,
    ) -> None:
        """`unused` is called after a check that found neither clients nor anything to do, now or later."""
        self._lead = lead
        self._watches = watches
        self._lost = lost
        handle = weakly(self._handle)
        self.members = Members(lead.context.settings, tokens, handle)
        self.records = SubscriptionRecords(lead)
        self._announcements = Announcements(lead, self.records, self.members, handle)
        self._subscriptions = Subscriptions(lead, self.records, self.members, self._announcements, handle)
        self._registrations = Registrations(lead, self._subscriptions, self.members, handle)
        self.scaling = Scaling(lead)
        self._layouts = LayoutChanges(lead, self._subscriptions, self.scaling, watches, handle)
        self.changes = ChangeRunner(lead, self._layouts, handle)
        self.upkeep = Upkeep(lead, self.changes, self._layouts, self._subscriptions, self.scaling)
        segments = lead.context.segments
        self._undo_drained = segments.on_drained(lead.name, self._subscriptions.report_drained)
        self._unused = unused
        self.upkeep.looked = weakly(self._looked)

    async def start(self) -> None:
        """Finish interrupted changes, now or later. Stops and raises if this broker no longer leads."""
        try:
            await self._subscriptions.load()
            await self.changes.start()
        except BaseException:
            await self.stop()
            raise
        self._watches.offer(self.name, self.layout)
        if self.record.garbage:
            self.upkeep.collect_within(0)
        self.upkeep.start()

    def _looked(self) -> None:
        used = self._watches.watched(self.name) or len(self.members.holds) or len(self.changes.queue)
        troubled = self.changes.troubles or self._layouts.unreached or self._subscriptions.troubles
        if self.upkeep.at_rest and not used and not troubled:
            self._unused(self)

    def retire(self) -> None:
        """Refuse changes and ignore drain reports from now on. `stop` ends the rest."""
        self.changes.queue.close()
        self._undo_drained()

    async def stop(self) -> None:
        """Stop at once, as a crash would. The next leader finishes what is unfinished."""
        self.retire()
        await self.upkeep.stop()
        await self.changes.stop()
        self._announcements.rosters.close()
        self.members.close()

    def _handle(self, event: TopicEvent) -> None:
        match event:
            case GraceOver(token):
                self.changes.post(lambda: self._registrations.evict(token), event)
            case Happened.DRAINS_REPORTED:
                self.changes.post(self._subscriptions.take_drains, event)
            case Happened.ROSTERS_DUE:
                self.changes.post(self._announcements.send, event)
            case Happened.MEMBERS_CHANGED:
                self.upkeep.look_soon()
            case Happened.GARBAGE_FOUND:
                self.upkeep.collect_within(0)
            case Happened.LEADERSHIP_LOST:
                self._lost(self)

    @property
    def name(self) -> TopicName:
        return self._lead.name

    @property
    def layout(self) -> Layout:
        return self._lead.layout

    @property
    def record(self) -> TopicRecord:
        return self._lead.record

    def why(self) -> dict[str, object]:
        return {
            "topic": str(self.name),
            "epoch": self.layout.epoch,
            "term": self._lead.term,
            "operation": self._layouts.describe(),
            "waitingChanges": len(self.changes.queue),
            "garbage": [garbage.name for garbage in self.record.garbage],
            "troubles": self._troubles(),
            "subscriptions": self._describe_subscriptions(),
            "decisions": list(self.scaling.looks),
        }

    def _troubles(self) -> dict[str, str]:
        layouts = {**self._lead.lost, **self._layouts.unreached}
        return {**self.changes.troubles, **layouts, **self.upkeep.troubles()}

    def _describe_subscriptions(self) -> dict[str, dict[str, object]]:
        return reports.subscriptions(self.layout, self._subscriptions, self._announcements, self.members)

    async def explain(self) -> dict[str, object]:
        return self.why() | {"troubles": {**self._troubles(), **await reports.segment_troubles(self._lead)}}

    async def stats(self) -> dict[str, object]:
        found = await reports.topic_stats(self._lead, self.records, self._describe_subscriptions())
        return {**found, "autoScalePolicy": self.scaling.describe_policy()}

    async def settled(self) -> None:
        await self.changes.settled()

    async def split(
        self, segment_id: int, points: Sequence[int] | None = None, expected: LayoutVersion | None = None
    ) -> Layout:
        plan = partial(operation.plan_split, points={segment_id: points})
        return await self._operate((segment_id,), plan, expected)

    async def merge(self, ids: Iterable[int], expected: LayoutVersion | None = None) -> Layout:
        parents = tuple(ids)
        return await self._operate(parents, partial(operation.plan_merge, ids=parents), expected)

    async def rebucket(
        self, segment_id: int, splits: Sequence[int], expected: LayoutVersion | None = None
    ) -> Layout:
        plan = partial(operation.plan_rebucket, splits={segment_id: splits})
        return await self._operate((segment_id,), plan, expected)

    async def _operate(
        self, parents: tuple[int, ...], plan: Callable[..., IntentRecord], expected: LayoutVersion | None
    ) -> Layout:
        origin = self._lead.origin("by request")
        change = RequestedChange(parents, partial(plan, topic=self.name, origin=origin), expected)

        async def once() -> Layout:
            if operation.is_made(change, self.layout, self.record.incarnation):
                return self.layout
            return await self._layouts.operate(change.plan)

        return await self.changes.run(once)

    async def set_policy(self, override: PolicyFields | None) -> None:
        await self.scaling.load_namespace()
        self.scaling.policy_with(override)
        await self.changes.run(
            lambda: self._lead.update(lambda record: replace(record, auto_scale_policy=override))
        )
        self.upkeep.look_soon()

    async def set_properties(self, properties: Mapping[str, str | None]) -> None:
        check_properties("a topic", with_properties(self.record, properties).properties)
        await self.changes.run(lambda: self._lead.update(lambda record: with_properties(record, properties)))

    async def delete(self, *, force: bool = False, incarnation: int | None = None) -> None:
        # Not inside the change, where this error would mean that the topic of this leader is gone.
        if incarnation not in (None, self.record.incarnation):
            raise TopicNotFoundError(f"incarnation {incarnation} of {self.name} was deleted before")

        async def mark() -> None:
            if not force and self.members.holds.connected():
                raise ConsumerBusyError(f"{self.name} has connected consumers; close them, or force it")
            await self._lead.update(lambda record: replace(record, deleted=True))
            await self._lead.context.failpoints.reach("delete.marked")
            self._watches.offer(self.name, None)
            self._announcements.topic_deleted()
            self.changes.queue.close(deleted=True)

        # Unfinished changes are deleted with the topic, so they are not finished first.
        await self.changes.run(mark, settle=False)
        self._lost(self)

    async def ensure_subscription(
        self, sub: str, kind: SubscriptionKind, start: InitialPosition, opened_in: int | None = None
    ) -> None:
        if not self._subscriptions.is_ready(sub, kind):
            await self.changes.run(lambda: self._subscriptions.ensure(sub, kind, start, opened_in))
        # A former leader must not confirm from memory what its successor may have deleted.
        self._check_leads()

    async def delete_subscription(
        self, sub: str, *, force: bool = False, created_at_ms: int | None = None
    ) -> None:
        await self.changes.run(
            lambda: self._subscriptions.delete(sub, force=force, created_at_ms=created_at_ms)
        )

    async def seek(self, sub: str, timestamp_ms: int) -> None:
        await self._move(sub, UnfinishedRecord(kind="seek", timestamp_ms=timestamp_ms))

    async def seek_segment(self, sub: str, segment_id: int, to: Aim | int) -> None:
        if isinstance(to, int):
            how = UnfinishedRecord(kind="seek", segment_id=segment_id, timestamp_ms=to)
        else:
            aim = AimRecord(ledger=to.ledger, entry=to.entry, ack_set=to.ack_set)
            how = UnfinishedRecord(kind="seek", segment_id=segment_id, aim=aim)
        await self._move(sub, how)

    async def skip_all(self, sub: str) -> None:
        await self._move(sub, UnfinishedRecord(kind="skip"))

    async def _move(self, sub: str, how: UnfinishedRecord) -> None:
        await self.changes.run(lambda: self._subscriptions.move(sub, how))

    async def drained(self, event: Drained) -> None:
        self._check_leads()
        self._subscriptions.report_drained(event)

    async def admit(self, sub: str, request: AttachRequest) -> Admission:
        await self.ensure_subscription(sub, request.kind, request.start, request.opened_in)
        ordered = self.records.existing(sub).type == request.kind == "STREAM"
        admitted = self._announcements.admit(sub, request) if ordered else Admission()
        return dataclasses.replace(admitted, incarnation=self.record.incarnation)

    async def remind(self, sub: str) -> None:
        self._announcements.remind(sub)

    async def register(
        self, sub: str, consumer_name: str, push: Push, request: RegistrationRequest = PLAIN_REQUEST
    ) -> Membership:
        # Done outside the queue, because a dead holder of the name takes long to answer.
        await self.members.make_room(sub, consumer_name, request)
        return await self.changes.run(
            lambda: self._registrations.register(sub, consumer_name, push, request),
            # Without this, a consumer that died while it waited would stay a connected member forever.
            orphaned=self.connection_lost,
        )

    def connection_lost(self, membership: Membership) -> None:
        self.members.lost(membership.token)

    async def leave(self, membership: Membership) -> None:
        try:
            await self.changes.run(lambda: self._registrations.leave(membership.token))
        except BaseException:
            self.members.left_unrecorded(membership.token)
            raise

    def _check_leads(self) -> None:
        if self.changes.queue.closed:
            raise NotLeaderError(f"{self.name} is not led here any more")
        self._lead.context.check_right()
