"""Leads one topic: takes requests and events, and passes each on as a change to the topic's change queue.

A split goes forward from here: `decide.operation` plans it, `ChangeRunner` queues it, `LayoutChanges` sends
the commands to segments and commits the layout by compare-and-set, `LayoutWatches` passes the layout on. The
controller knows segments only through their port. It never assumes that a write without an answer failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from anabranch.controller.decide import operation
from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.decide.groups import PLAIN_REQUEST, RegistrationRequest
from anabranch.controller.decide.operation import LayoutVersion, RequestedChange
from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.ports.leader import Membership, Push
from anabranch.controller.ports.segments import Aim, Drained, StartAt
from anabranch.controller.topic import reports
from anabranch.controller.topic.announcements import Announcements
from anabranch.controller.topic.change_runner import ChangeRunner
from anabranch.controller.topic.events import (
    DrainsReported,
    GarbageFound,
    GraceOver,
    LeadershipLost,
    MembersChanged,
    RostersDue,
    TopicEvent,
)
from anabranch.controller.topic.layout_changes import LayoutChanges
from anabranch.controller.topic.leadership import ControllerContext, Leadership
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.registrations import Registrations
from anabranch.controller.topic.scaling import Scaling, Tally
from anabranch.controller.topic.settling import TopicSettling
from anabranch.controller.topic.subscription_records import SubscriptionRecords
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.controller.topic.upkeep import Upkeep
from anabranch.errors import ConsumerBusyError, NotLeaderError, TopicNotFoundError
from anabranch.metadata.records import SubscriptionKind, SubscriptionRecord, TopicRecord
from anabranch.metadata.topics import with_properties
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScaleOverride, AutoScalePolicy, to_json

replace = msgspec.structs.replace


class TopicController:
    """The leader of one topic; made by `lead`."""

    def __init__(
        self,
        lead: Leadership,
        watches: LayoutWatches,
        tokens: Iterator[int],
        lost: Callable[[TopicController], None],
    ) -> None:
        self._lead = lead
        self._context = lead.context
        self._watches = watches
        self._lost = lost
        self.members = Members(lead.context.settings, tokens, self._handle)
        records = SubscriptionRecords(lead)
        self._announcements = Announcements(lead, records, self.members, self._handle)
        self._subscriptions = Subscriptions(lead, records, self.members, self._announcements, self._handle)
        self._registrations = Registrations(
            lead, self._subscriptions, self.members, self._announcements, self._handle
        )
        self._scaling = Scaling(lead)
        self._layouts = LayoutChanges(lead, self._subscriptions, self._scaling, watches)
        self._settling = TopicSettling(lead, self._layouts, self._subscriptions, self._scaling, self._handle)
        self.changes = ChangeRunner(lead, self._settling, self._handle)
        self.upkeep = Upkeep(lead, self.changes, self._layouts, self._subscriptions, self._scaling)
        self._undo_drained = self._context.segments.on_drained(self.name, self._subscriptions.report_drained)

    @staticmethod
    async def lead(
        context: ControllerContext,
        name: TopicName,
        watches: LayoutWatches,
        tokens: Iterator[int],
        lost: Callable[[TopicController], None],
    ) -> TopicController:
        """Take the topic over and finish its interrupted changes; TopicNotFoundError if there is none.

        Changes that cannot be finished now are retried. `lost` is called when another broker leads the topic,
        or the topic is gone.
        """
        controller = TopicController(await Leadership.take_over(context, name), watches, tokens, lost)
        try:
            await controller._start()
        except BaseException:
            await controller.stop()
            raise
        return controller

    async def _start(self) -> None:
        await self._subscriptions.load()
        await self.changes.start()
        self._watches.offer(self.name, self.layout)
        if self.record.garbage:
            self.upkeep.collect_within(0)
        self.upkeep.start()

    async def stop(self) -> None:
        """Stop at once, as a crash would; the next leader finishes what is unfinished."""
        self.changes.close()
        self._undo_drained()
        await self.upkeep.stop()
        await self.changes.stop()
        self._announcements.close()
        self.members.close()

    def _handle(self, event: TopicEvent) -> None:
        match event:
            case GraceOver(sub, token):
                self.changes.post(lambda: self._registrations.evict(sub, token), event)
            case DrainsReported():
                self.changes.post(self._subscriptions.take_drains, event)
            case RostersDue():
                self.changes.post(self._announcements.send, event)
            case MembersChanged():
                self.upkeep.look_soon()
            case GarbageFound():
                self.upkeep.collect_within(0)
            case LeadershipLost():
                self._lost(self)

    # State.

    @property
    def name(self) -> TopicName:
        return self._lead.name

    @property
    def layout(self) -> Layout:
        return self._lead.layout

    @property
    def record(self) -> TopicRecord:
        return self._lead.record

    @property
    def tally(self) -> Tally:
        return self._scaling.tally

    def subscriptions(self) -> Mapping[str, SubscriptionRecord]:
        """The registered subscriptions by name."""
        return dict(self._subscriptions.records)

    def policy(self) -> AutoScalePolicy:
        """The auto-scale policy in force as of the last look; InvalidConfigurationError if there is none."""
        return self._scaling.policy()

    def why(self) -> dict[str, object]:
        """The running operation, waiting changes, troubles and last decisions, for operators."""
        return {
            "topic": str(self.name),
            "epoch": self.layout.epoch,
            "term": self._lead.term,
            "operation": self._layouts.describe(),
            "waitingChanges": len(self.changes),
            "garbage": [garbage.name for garbage in self.record.garbage],
            "troubles": {**self.changes.troubles, **self._settling.unreached, **self.upkeep.troubles()},
            "subscriptions": self._describe_subscriptions(),
            "decisions": self._scaling.describe(),
        }

    def _describe_subscriptions(self) -> dict[str, dict[str, object]]:
        return {
            sub: {
                **reports.subscription_state(record, self.layout),
                "trouble": self._subscriptions.troubles.get(sub),
                "unreached": self._announcements.unreached(sub),
                "consumers": reports.consumers(record, self.members.of(sub), self.members.seconds_left),
            }
            for sub, record in sorted(self._subscriptions.records.items())
        }

    async def explain(self) -> dict[str, object]:
        """As `why`, for callers at other brokers."""
        return self.why()

    async def stats(self) -> dict[str, object]:
        """Rates and sizes of each segment, state and backlog of each subscription, the policy in force."""
        records = self._subscriptions.records
        found = await reports.topic_stats(self._lead, records, self._describe_subscriptions())
        return {**found, "autoScalePolicy": self._scaling.describe_policy()}

    async def settled(self) -> None:
        """Return when no earlier change is unfinished; raises the error that prevents it."""
        await self.changes.settled()

    # The topic.

    async def split(
        self, segment_id: int, points: Sequence[int] | None = None, expected: LayoutVersion | None = None
    ) -> Layout:
        """Split a segment in the middle, or at these start hashes of the children after the first.

        A change that was made since the caller saw `expected` is not made again; so are the changes below.
        """
        origin = self._lead.origin("by request")
        cut = {segment_id: points}
        return await self._operate(
            RequestedChange(
                (segment_id,),
                lambda layout: operation.plan_split(layout, self.name, cut, origin),
                expected,
            )
        )

    async def merge(self, ids: Iterable[int], expected: LayoutVersion | None = None) -> Layout:
        """Merge a run of neighbours."""
        origin = self._lead.origin("by request")
        run = tuple(ids)
        return await self._operate(
            RequestedChange(
                run, lambda layout: operation.plan_merge(layout, self.name, run, origin), expected
            )
        )

    async def rebucket(
        self, segment_id: int, splits: Sequence[int], expected: LayoutVersion | None = None
    ) -> Layout:
        """Replace a segment by one with these bucket boundaries."""
        origin = self._lead.origin("by request")
        new = {segment_id: splits}
        made = await self._operate(
            RequestedChange(
                (segment_id,),
                lambda layout: operation.plan_rebucket(layout, self.name, new, origin),
                expected,
            )
        )
        self._scaling.tally.rebuckets += 1
        return made

    async def _operate(self, change: RequestedChange) -> Layout:
        async def once() -> Layout:
            if operation.is_made(change, self.layout, self.record.incarnation):
                return self.layout
            return await self._layouts.operate(change.plan)

        return await self.changes.run(once)

    async def set_policy(self, override: AutoScaleOverride | None) -> None:
        """Replace the topic's own layer of the auto-scale policy.

        InvalidConfigurationError if it does not fit the layers below.
        """
        await self._scaling.load_namespace()
        self._scaling.policy_with(override)
        fields = None if override is None else to_json(override)
        await self._update(lambda record: replace(record, auto_scale_policy=fields))
        self.upkeep.look_soon()

    async def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Change these properties of the topic and leave the others; None removes a property."""
        await self._update(lambda record: with_properties(record, properties))

    async def _update(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        await self.changes.run(lambda: self._lead.update(change))

    async def delete(self, *, force: bool = False, incarnation: int | None = None) -> None:
        """Make the topic vanish for all clients; the service removes its records and storage.

        ConsumerBusyError while registered consumers are connected, unless forced. TopicNotFoundError if the
        topic has another incarnation than the given one.
        """

        async def mark() -> None:
            if incarnation not in (None, self.record.incarnation):
                raise TopicNotFoundError(f"incarnation {incarnation} of {self.name} was deleted before")
            if not force and self.members.connected():
                raise ConsumerBusyError(f"{self.name} has connected consumers; close them, or force it")
            await self._lead.update(lambda record: replace(record, deleted=True))
            await self._context.failpoints.reach("delete.marked")
            self._watches.offer(self.name, None)
            self._announcements.topic_deleted()
            self.changes.close_deleted()

        # Unfinished changes are deleted with the topic, so they are not finished first.
        await self.changes.run(mark, settle=False)
        self._lost(self)

    # Subscriptions.

    async def ensure_subscription(
        self, sub: str, kind: SubscriptionKind, start: StartAt, opened_in: int | None = None
    ) -> None:
        """Register the subscription and create it on all active segments at `start`.

        At earliest, sealed segments get it too; at latest, they count as drained. When this returns, the
        children of every running and later operation get the subscription.
        """
        if not self._subscriptions.is_ready(sub, kind):
            await self.changes.run(lambda: self._subscriptions.ensure(sub, kind, start, opened_in))

    async def delete_subscription(
        self, sub: str, *, force: bool = False, created_at_ms: int | None = None
    ) -> None:
        """Remove the subscription; ConsumerBusyError while its consumers are connected, unless forced.

        With `created_at_ms`, do nothing if the subscription that was created then is gone.
        """
        await self.changes.run(
            lambda: self._subscriptions.delete(sub, force=force, created_at_ms=created_at_ms)
        )

    async def seek(self, sub: str, timestamp_ms: int) -> None:
        """Move the subscription to a time, on all segments."""
        await self.changes.run(lambda: self._subscriptions.seek(sub, timestamp_ms))

    async def seek_segment(self, sub: str, segment_id: int, to: Aim | int) -> None:
        """Move the subscription on one segment, to an entry or a time; children wait for it again."""
        await self.changes.run(lambda: self._subscriptions.seek_segment(sub, segment_id, to))

    async def skip_all(self, sub: str) -> None:
        """Acknowledge everything stored so far on the subscription."""
        await self.changes.run(lambda: self._subscriptions.skip_all(sub))

    async def drained(self, event: Drained) -> None:
        """Take an owner's report of a drained segment; NotLeaderError if this broker leads no more."""
        self._check_leads()
        self._subscriptions.report_drained(event)

    # Consumers.

    async def admit(self, sub: str, request: AttachRequest) -> Admission:
        """Let a consumer attach to a segment, and create the subscription as `ensure_subscription` does.

        ConsumerBusyError if registered consumers read the subscription and this consumer does not read this
        segment, or its generation is not the newest.
        """
        await self.ensure_subscription(sub, request.kind, request.start, request.opened_in)
        self._check_leads()
        admitted = Admission()
        if request.kind == "STREAM" == self._subscriptions.records.existing(sub).type:
            admitted = self._announcements.admit(sub, request)
        return dataclasses.replace(admitted, incarnation=self.record.incarnation)

    async def remind(self, sub: str) -> None:
        """Push assignments again to consumers whose clients may have missed them."""
        self._announcements.remind(sub)

    async def register(
        self,
        sub: str,
        consumer_name: str,
        push: Push,
        request: RegistrationRequest = PLAIN_REQUEST,
    ) -> Membership:
        """Make a consumer a member and return its assignment; `push` gets each later one.

        ConsumerBusyError while another consumer of that name lives.
        While one member reads segments only whole, no segment is shared by buckets. A member of a checkpoint
        group registers again when it has finished more segments.
        """
        # Outside the queue, since a dead holder of the name takes long to answer.
        await self.members.make_room(sub, consumer_name, request)
        return await self.changes.run(
            lambda: self._registrations.register(sub, consumer_name, push, request),
            # Without this, a consumer that died while it waited would stay a connected member for ever.
            orphaned=self.connection_lost,
        )

    def connection_lost(self, registration: Membership) -> None:
        """Start the grace period of a member whose connection was lost."""
        self.members.lost(registration.subscription, registration.token)

    async def leave(self, registration: Membership) -> None:
        """Remove a member and assign its segments to the other members, now or as soon as possible."""
        sub, token = registration.subscription, registration.token
        try:
            await self.changes.run(lambda: self._registrations.leave(sub, token))
        except BaseException:
            self.members.left_unrecorded(sub, token)
            raise

    def _check_leads(self) -> None:
        if self.changes.closed:
            raise NotLeaderError(f"{self.name} is not led here any more")
