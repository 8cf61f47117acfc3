"""Leads one topic: its queue of changes, its consumers, and the look at its load.

Everything that changes the topic runs in its queue, one job after the other, and starts by finishing what an
earlier job or leader left half done. It knows segments only through their port, and never assumes that a
write whose answer was lost did not happen: it reads again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from anabranch.controller.decide import operation
from anabranch.controller.decide.admission import Admission
from anabranch.controller.decide.groups import PLAIN_REQUEST, RegistrationRequest
from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.ports.leader import Membership, Push
from anabranch.controller.ports.segments import Aim, Drained, StartAt
from anabranch.controller.topic import reports
from anabranch.controller.topic.change_queue import ChangeQueue
from anabranch.controller.topic.layout_changes import LayoutChanges, Plan
from anabranch.controller.topic.leadership import ControllerContext, Leadership
from anabranch.controller.topic.scaling import Scaling, Tally
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.controller.topic.upkeep import Upkeep
from anabranch.errors import ConsumerBusyError, NotLeaderError, in_words
from anabranch.metadata.records import SubscriptionKind, SubscriptionRecord, TopicRecord
from anabranch.metadata.topics import with_properties
from anabranch.model.autoscale import Decision, Keep
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
        settings = lead.world.settings
        self.troubles: dict[str, str] = {}
        self._lead = lead
        self._world = lead.world
        self._watches = watches
        self._lost = lost
        self._turns = ChangeQueue(lead, self._reload, self._settle, lambda: lost(self), self.troubles)
        self._subs = Subscriptions(lead, self._turns.post, self._consumers_changed, tokens)
        self._scaling = Scaling(lead)
        self._changes = LayoutChanges(lead, self._subs, self._scaling, watches)
        self._upkeep = Upkeep(
            {"pruning": self.prune, "scaling": self.look},
            self.collect_garbage,
            lambda: self._world.jitter_s(settings.auto_scale_interval_s),
            self.troubles,
        )
        self._undo_drained: Callable[[], None] | None = None

    @staticmethod
    async def lead(
        world: ControllerContext,
        name: TopicName,
        watches: LayoutWatches,
        tokens: Iterator[int],
        lost: Callable[[TopicController], None],
    ) -> TopicController:
        """Take the topic over and finish what was begun; TopicNotFoundError if there is none.

        What cannot be finished now is tried again until it is; `lost` is told when another leader took over,
        or the topic is gone.
        """
        controller = TopicController(await Leadership.take_over(world, name), watches, tokens, lost)
        try:
            await controller._start()
        except BaseException:
            await controller.stop()
            raise
        return controller

    async def _start(self) -> None:
        await self._subs.load()
        # Before the first question about backlogs: what becomes drained after it must not be missed.
        self._undo_drained = self._world.segments.on_drained(self.name, self._subs.drained)
        self._turns.start()
        try:
            await self.settled()
        except Exception as error:
            if self._turns.closed:
                raise
            self.troubles["settle"] = in_words(error)
        self._watches.offer(self.name, self.layout)
        if self.record.garbage:
            self._upkeep.collect_within(0)
        self._upkeep.start(str(self.name))

    async def stop(self) -> None:
        """Stop where it stands, as a crash would; the next leader goes on from there."""
        self._turns.close()
        if self._undo_drained is not None:
            self._undo_drained()
            self._undo_drained = None
        await self._upkeep.stop()
        await self._turns.stop()
        self._subs.close()

    # What everybody may ask.

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
        return dict(self._subs.records)

    def policy(self) -> AutoScalePolicy:
        """The auto-scale policy in force as of the last look; InvalidConfigurationError if there is none."""
        return self._scaling.policy()

    def why(self) -> dict[str, object]:
        """What is under way, what waits for what, and the last decisions, for people."""
        return {
            "topic": str(self.name),
            "epoch": self.layout.epoch,
            "term": self._lead.term,
            "operation": self._changes.describe(),
            "waitingChanges": len(self._turns),
            "garbage": [garbage.name for garbage in self.record.garbage],
            "troubles": dict(self.troubles),
            "subscriptions": self._subs.describe(),
            "decisions": self._scaling.describe(),
        }

    async def explain(self) -> dict[str, object]:
        """As `why`, also when the leader is another broker."""
        return self.why()

    async def stats(self) -> dict[str, object]:
        """Rates and sizes of each segment, state and backlog of each subscription, the policy in force."""
        found = await reports.topic_stats(self._lead, self._subs.records, self._subs.describe())
        return {**found, "autoScalePolicy": self._scaling.describe_policy()}

    # Layout operations.

    async def split(self, segment_id: int, points: Sequence[int] | None = None) -> Layout:
        """Cut a segment at these start hashes of the children after the first; in the middle by default."""
        origin = self._lead.origin("by request")
        cut = {segment_id: points}
        return await self._operate(lambda layout: operation.plan_split(layout, self.name, cut, origin))

    async def merge(self, ids: Iterable[int]) -> Layout:
        """Join a run of neighbours."""
        origin = self._lead.origin("by request")
        run = tuple(ids)
        return await self._operate(lambda layout: operation.plan_merge(layout, self.name, run, origin))

    async def rebucket(self, segment_id: int, splits: Sequence[int]) -> Layout:
        """Give a segment's range other bucket boundaries from now on."""
        origin = self._lead.origin("by request")
        new = {segment_id: splits}
        made = await self._operate(lambda layout: operation.plan_rebucket(layout, self.name, new, origin))
        self._scaling.tally.rebuckets += 1
        return made

    async def _operate(self, plan: Plan) -> Layout:
        return await self._turns.run(lambda: self._changes.operate(plan))

    async def set_policy(self, override: AutoScaleOverride | None) -> None:
        """Replace the topic's own layer of the auto-scale policy.

        InvalidConfigurationError if it does not fit the layers below.
        """
        await self._scaling.load_namespace()
        self._scaling.policy_with(override)
        fields = None if override is None else to_json(override)
        await self._update(lambda record: replace(record, auto_scale_policy=fields))
        self._upkeep.look_within(self._world.settings.auto_scale_settle_s)

    async def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Change these properties of the topic and leave the others; None removes one."""
        await self._update(lambda record: with_properties(record, properties))

    async def _update(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        await self._turns.run(lambda: self._lead.update(change))

    async def delete(self, *, force: bool = False) -> None:
        """Make the topic vanish for everybody; the service removes what is left of it.

        Refused with ConsumerBusyError while registered consumers are connected, unless forced.
        """

        async def mark() -> None:
            if not force and self._subs.any_connected:
                raise ConsumerBusyError(f"{self.name} has connected consumers; close them, or force it")
            await self._lead.update(lambda record: replace(record, deleted=True))
            await self._world.failpoints.reach("delete.marked")
            self._watches.offer(self.name, None)
            self._subs.tell_deleted()
            self._turns.close_deleted()

        # Without settling first: what is half done will be deleted too.
        await self._turns.run(mark, settle=False)
        self._lost(self)

    # Subscriptions and consumers.

    async def ensure_subscription(
        self, sub: str, kind: SubscriptionKind, start: StartAt, opened_in: int | None = None
    ) -> None:
        """Register the subscription and make it on all active segments at `start`.

        If that is earliest, sealed segments get it too; if latest, they count as drained. When this returns
        it is also on the children of every operation that runs or comes later.
        """
        if not self._subs.is_ready(sub, kind):
            await self._turns.run(lambda: self._subs.ensure(sub, kind, start, opened_in))

    async def admit(
        self,
        sub: str,
        kind: SubscriptionKind,
        start: StartAt,
        segment_id: int,
        consumer_name: str,
        generation: int | None,
        opened_in: int | None = None,
    ) -> Admission:
        """Let a consumer attach to a segment, and make the subscription as `ensure_subscription` does.

        ConsumerBusyError when registered consumers read the subscription and this one does not read this
        segment, or its generation is not the newest; SubscriptionNotFoundError if it had it open, before.
        """
        await self.ensure_subscription(sub, kind, start, opened_in)
        if self._turns.closed:
            raise NotLeaderError(f"{self.name} is not led here any more")
        grant = self._subs.admit(sub, kind, segment_id, consumer_name, generation)
        return dataclasses.replace(grant, incarnation=self.record.incarnation)

    async def remind(self, sub: str) -> None:
        """Tell consumers whose clients may miss an assignment once more what they read."""
        self._subs.remind(sub)

    async def delete_subscription(self, sub: str, *, force: bool = False) -> None:
        """Remove the subscription; ConsumerBusyError while its consumers are connected, unless forced."""
        await self._turns.run(lambda: self._subs.delete(sub, force=force))

    async def seek(self, sub: str, timestamp_ms: int) -> None:
        """Move the subscription to a time, on all segments."""
        await self._turns.run(lambda: self._subs.seek(sub, timestamp_ms))

    async def seek_segment(self, sub: str, segment_id: int, to: Aim | int) -> None:
        """Move the subscription on one segment, to an entry or a time; children wait for it again."""
        await self._turns.run(lambda: self._subs.seek_segment(sub, segment_id, to))

    async def skip_all(self, sub: str) -> None:
        """Acknowledge everything stored so far on the subscription."""
        await self._turns.run(lambda: self._subs.skip_all(sub))

    async def register(
        self,
        sub: str,
        consumer_name: str,
        kind: SubscriptionKind,
        start: StartAt | None,
        push: Push,
        said: RegistrationRequest = PLAIN_REQUEST,
    ) -> Membership:
        """Make a consumer a member and say what it reads; `push` is told each time that changes.

        ConsumerBusyError while another consumer of that name lives. With `start` None an unknown
        subscription is registered without a position; the first `ensure_subscription` gives it one.
        While a member reads segments only whole, nobody shares one by buckets. A member of a checkpoint
        group registers again when it has finished more.
        """
        # Not in the queue, since the dead take long to answer.
        await self._subs.make_room(sub, consumer_name, said)
        return await self._turns.run(
            lambda: self._subs.register(sub, consumer_name, kind, start, push, said),
            # A caller that died while it waited would otherwise stay a living member for ever.
            orphaned=self.connection_lost,
        )

    def connection_lost(self, registration: Membership) -> None:
        """The connection that registered is gone; its share is kept for the grace period."""
        self._subs.connection_lost(registration)

    async def leave(self, registration: Membership) -> None:
        """The consumer leaves for good: what it read goes to the others at once, or as soon as it can."""
        try:
            await self._turns.run(lambda: self._subs.leave(registration.subscription, registration.token))
        except BaseException:
            self._subs.will_not_return(registration)
            raise

    async def drained(self, event: Drained) -> None:
        """An owner says that a sealed segment is drained; looked at in turn."""
        if self._turns.closed:
            raise NotLeaderError(f"{self.name} is not led here any more")
        self._subs.drained(event)

    def _consumers_changed(self) -> None:
        self._upkeep.look_within(self._world.settings.auto_scale_settle_s)

    # Garbage, pruning, scaling.

    async def collect_garbage(self) -> None:
        """Delete what the layout has forgotten, and strike it off the list; whatever fails stays on it."""
        gone, left = await self._changes.delete_garbage()
        self._replace_troubles("garbage ", left)
        try:
            if gone:
                await self._turns.run(lambda: self._changes.strike_off(gone))
        finally:
            if self.record.garbage:
                self._upkeep.collect_within(self._world.jitter_s(self._world.settings.retry_max_s))

    async def prune(self) -> None:
        """Give back what every subscription has read and that is beyond a limit of retention."""
        measured = await self._changes.measure()
        if await self._turns.run(lambda: self._changes.prune(*measured)):
            self._upkeep.collect_within(0)
        await self._changes.trim(*measured)

    async def look(self) -> Decision:
        """Look at the load and the consumers once, and do what auto-scaling decides."""
        self._subs.load_by_segment = await self._scaling.observe()
        decision = await self._turns.run(self._decide)
        if decision.look_again_s is not None:
            self._upkeep.look_within(max(decision.look_again_s, self._world.settings.auto_scale_settle_s))
        return decision

    async def _decide(self) -> Decision:
        decision = self._scaling.look(
            self._subs.members_max(sharing=True), self._subs.members_max(sharing=False)
        )
        if isinstance(decision.action, Keep):
            self._scaling.count(decision, done=False)
            await self._scaling.store_history()
            self._scaling.note(decision, "")
            return decision
        origin = self._lead.origin(decision.reason, automatic=True)
        actions = (decision.action, *decision.then)
        try:
            await self._changes.operate(lambda layout: operation.plan(layout, self.name, actions, origin))
        except Exception as error:
            self._scaling.note(decision, f"failed: {in_words(error)}")
            raise
        self._scaling.count(decision, done=True)
        self._scaling.note(decision, f"done: epoch {self.layout.epoch}")
        return decision

    # Making good what was interrupted.

    async def settled(self) -> None:
        """Return when nothing is half done; raises what stands in the way."""
        await self._turns.settled()

    async def _reload(self) -> None:
        await self._lead.reload()
        await self._subs.reload()
        self._scaling.reload()
        self._changes.publish()
        if self.record.garbage:
            # A pruning may have been stored although its answer was lost.
            self._upkeep.collect_within(0)

    async def _settle(self) -> bool:
        if self.record.intent is not None:
            await self._changes.carry_out(self.record.intent)
        unreached = await self._changes.fence()
        self._replace_troubles("segment ", unreached)
        return await self._subs.settle() and not unreached

    def _replace_troubles(self, prefix: str, new: dict[str, str]) -> None:
        for old in [what for what in self.troubles if what.startswith(prefix)]:
            del self.troubles[old]
        self.troubles.update(new)
