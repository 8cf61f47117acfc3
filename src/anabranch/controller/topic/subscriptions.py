"""The subscriptions of one topic: their records, their cursors on segments, their consumers.

The thin shell around the pure coordinator. Every method that changes a record runs in the topic's queue, so
there is one writer; what happens at any time (a lost connection, a drained segment) only leaves a note and
asks for a turn. Must not know about splits, merges or scaling beyond the layout they leave.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

import msgspec

from anabranch.aio import in_batches, together
from anabranch.controller.decide import admission, groups
from anabranch.controller.decide.admission import Admission
from anabranch.controller.decide.groups import RegistrationRequest
from anabranch.controller.ports.leader import Membership, Push
from anabranch.controller.ports.segments import Aim, Drained, StartAt
from anabranch.controller.topic import reports
from anabranch.controller.topic.cursors import Cursors
from anabranch.controller.topic.leadership import Leadership
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.rosters import Rosters
from anabranch.errors import (
    ConflictError,
    ConsumerBusyError,
    NotAllowedError,
    StaleTermError,
    SubscriptionNotFoundError,
    in_words,
)
from anabranch.metadata.records import AimRecord, SubscriptionKind, SubscriptionRecord, UnfinishedRecord
from anabranch.model.assignment import Assignment
from anabranch.model.names import validate_subscription

Job = Callable[[], Awaitable[None]]
SubscriptionChange = Callable[[SubscriptionRecord], SubscriptionRecord]

replace = msgspec.structs.replace

SETTLED_AT_ONCE = 32
"""Subscriptions that follow a layout side by side; they share the commits of the metadata store."""


class Subscriptions:
    """All subscriptions of the topic that `lead` leads.

    `post` asks for a turn in the topic's queue, `changed` is told when consumers came or went.
    """

    def __init__(
        self,
        lead: Leadership,
        post: Callable[[Job], None],
        changed: Callable[[], None],
        tokens: Iterator[int],
    ) -> None:
        self.records: dict[str, SubscriptionRecord] = {}
        self.load_by_segment: Mapping[int, float] = {}
        self.troubles: dict[str, str] = {}
        self._lead = lead
        self._cursors = Cursors(lead)
        self._post = post
        self._changed = changed
        self._stale: dict[str, None] = {}
        self._drains: dict[str, set[int]] = {}
        self._untold: dict[tuple[str, str], None] = {}
        """Consumers whose share changed, by subscription."""
        self._rosters = Rosters(lead, self.records, lambda: post(self._tell))
        grace_s = lead.world.settings.consumer_grace_s
        self._members = Members(grace_s, tokens, self._grace_over, self._assigned)

    # Loading, and making good what an interruption left.

    async def load(self) -> None:
        """Take the stored subscriptions over in this term; their consumers get a full grace period."""
        found = await self._lead.world.topics.load_subscriptions(self._lead.name)
        await together(self._claim(sub) for sub in found)
        self._rosters.taken_over()
        self._restore()

    async def reload(self) -> None:
        """Learn what is stored, after a write whose outcome is unknown."""
        found = await self._lead.world.topics.load_subscriptions(self._lead.name)
        for record in found.values():
            self._check_term(record)
        for sub in [sub for sub in self.records if sub not in found]:
            self._forget(sub)
        for sub, record in found.items():
            self._install(sub, record)
        self._restore()
        await self._tell()

    async def _claim(self, sub: str) -> None:
        def claim(found: SubscriptionRecord | None) -> SubscriptionRecord:
            if found is None or found.term > self._lead.term:
                raise StaleTermError(f"subscription {sub} of {self._lead.name} was changed by a newer leader")
            return replace(found, term=self._lead.term)

        topics = self._lead.world.topics
        self.records[sub] = await topics.update_subscription(self._lead.name, sub, claim)

    def _restore(self) -> None:
        for sub, record in sorted(self.records.items()):
            self._members.fit(sub, record.consumers)
        self.layout_changed()

    def layout_changed(self) -> None:
        """Drained segments and assignments of all subscriptions must be looked at again."""
        self._rosters.layout_changed()
        self._stale = dict.fromkeys(sorted(self.records))

    async def settle(self) -> bool:
        """Finish what was begun and follow the layout; False when something has to be tried again."""
        await self._tell()
        unfinished = (sub for sub, record in self.records.items() if record.unfinished is not None)
        due = sorted({*unfinished, *self._stale, *self.troubles})
        await in_batches((self._settle(sub) for sub in due), SETTLED_AT_ONCE)
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
            # One subscription that cannot go on must not hold up the others, but must be known as it is.
            self.troubles[sub] = in_words(error)
            await self._read_again(sub)

    async def _read_again(self, sub: str) -> None:
        record = await self._lead.world.topics.load_subscription(self._lead.name, sub)
        if record is None:
            self._forget(sub)
        else:
            self._check_term(record)
            self._install(sub, record)
            await self._tell()

    def close(self) -> None:
        """Forget connections and timers; nothing is pushed any more."""
        self._rosters.close()
        self._members.close()

    # Subscriptions.

    def is_ready(self, sub: str, kind: SubscriptionKind) -> bool:
        """Whether the subscription is on all segments already, or needs to be on none."""
        record = self.records.get(sub)
        if record is None or record.unfinished is not None or record.type != kind:
            return False
        return kind == "CHECKPOINT" or record.initial_position is not None

    def for_new(self) -> dict[str, StartAt]:
        """The subscriptions a new segment must have: from its beginning, since nothing came before.

        One that is only being made is not confirmed to anybody, and is made on the new segment in its turn.
        """
        return {
            sub: "earliest"
            for sub, record in sorted(self.records.items())
            if groups.has_cursors(record)
            and (record.unfinished is None or record.unfinished.kind in ("seek", "skip"))
        }

    async def ensure(
        self, sub: str, kind: SubscriptionKind, start: StartAt | None, opened_in: int | None = None
    ) -> None:
        """Register the subscription and make it on the segments, as far as it is not there yet.

        SubscriptionNotFoundError if it is gone and was opened in this incarnation of the topic.
        """
        validate_subscription(sub)
        if sub in self.records and self.records[sub].unfinished is not None:
            await self._finish(sub)
        if sub not in self.records:
            if opened_in == self._lead.record.incarnation:
                raise SubscriptionNotFoundError(
                    f"subscription {sub} of {self._lead.name} was deleted; open it again to begin anew"
                )
            await self._create(sub, self._new(kind), start)
            return
        record = self.records[sub]
        if record.type != kind:
            record = await self._change_kind(sub, record, kind)
        if start is not None and not groups.has_cursors(record):
            await self._create(sub, record, start)

    async def adopt(self, sub: str, kind: SubscriptionKind) -> None:
        """Register a subscription that all segments have already."""
        if sub not in self.records:
            await self._store(sub, lambda _: replace(self._new(kind), initial_position="earliest"))

    def _new(self, kind: SubscriptionKind) -> SubscriptionRecord:
        now_ms = self._lead.world.clock.wall_ms()
        return SubscriptionRecord(type=kind, term=self._lead.term, created_at_ms=now_ms)

    async def _create(self, sub: str, record: SubscriptionRecord, start: StartAt | None) -> None:
        if record.type != "CHECKPOINT" and start is not None:
            record = replace(
                record, initial_position=start, unfinished=UnfinishedRecord(kind="create"), drained=()
            )
            if start == "latest":
                sealed = [segment.id for segment in self._lead.layout.sealed]
                record = groups.rewind(record, self._lead.layout, sealed, self.load_by_segment)
        await self._store(sub, lambda _: record)
        # A new record is fenced by nothing yet. Either this sees that another leader took over, or that
        # leader sees the record, since it raises the term before it looks for subscriptions.
        await self._lead.reload()
        await self._reach("create.recorded")
        if record.unfinished is not None:
            await self._finish(sub)

    async def _change_kind(
        self, sub: str, record: SubscriptionRecord, kind: SubscriptionKind
    ) -> SubscriptionRecord:
        # Queue consumers do not register, and those of a stream would wait for them without end.
        if record.consumers or (record.type == "QUEUE" and await self._cursors.in_use(sub)):
            raise ConsumerBusyError(
                f"subscription {sub} has {record.type} consumers; close them before using it as {kind}"
            )
        if kind == "CHECKPOINT":
            raise ConflictError(
                f"{sub} is a {record.type} subscription; choose another name for the checkpoint group"
            )
        return await self._save(sub, lambda found: replace(found, type=kind))

    async def delete(self, sub: str, *, force: bool) -> None:
        """Remove the subscription everywhere; while consumers are connected only if forced."""
        record = self._existing(sub)
        if not force and any(lease.connected for lease in self._members.of(sub)):
            raise ConsumerBusyError(f"subscription {sub} has connected consumers; close them first")
        if record.unfinished is not None:
            await self._finish(sub)
        await self._save(sub, lambda found: replace(found, unfinished=UnfinishedRecord(kind="delete")))
        await self._reach("delete.recorded")
        await self._finish(sub)

    async def seek(self, sub: str, timestamp_ms: int) -> None:
        """Move to a time on all segments; children wait for their parents again."""
        await self._move(sub, UnfinishedRecord(kind="seek", timestamp_ms=timestamp_ms))

    async def seek_segment(self, sub: str, segment_id: int, to: Aim | int) -> None:
        """Move one segment to an entry or a time; its descendants wait for it again."""
        if isinstance(to, int):
            how = UnfinishedRecord(kind="seek", segment_id=segment_id, timestamp_ms=to)
        else:
            aim = AimRecord(ledger=to.ledger, entry=to.entry, ack_set=to.ack_set)
            how = UnfinishedRecord(kind="seek", segment_id=segment_id, aim=aim)
        self._lead.layout.segment(segment_id)
        await self._move(sub, how)

    async def skip_all(self, sub: str) -> None:
        """Acknowledge everything that is stored now."""
        await self._move(sub, UnfinishedRecord(kind="skip"))

    async def _move(self, sub: str, how: UnfinishedRecord) -> None:
        record = self._existing(sub)
        if record.type == "CHECKPOINT":
            raise NotAllowedError(f"{sub} is a checkpoint group; its members keep their own positions")
        if record.unfinished is not None:
            await self._finish(sub)

        def begin(found: SubscriptionRecord) -> SubscriptionRecord:
            moving = replace(found, unfinished=how)
            if how.kind == "skip":
                return moving
            # Children are taken back before their parents are rewound: nobody may be ahead of a parent.
            return groups.read_again(moving, self._lead.layout, how.segment_id, self.load_by_segment)

        await self._save(sub, begin)
        await self._reach(f"{how.kind}.recorded")
        await self._finish(sub)

    async def _finish(self, sub: str) -> None:
        """Carry out on every segment what the record says is unfinished; repeating it does no harm."""
        record = self.records[sub]
        unfinished = record.unfinished
        assert unfinished is not None
        await self._cursors.carry_out(sub, record)
        await self._reach(f"{unfinished.kind}.applied")
        if unfinished.kind == "delete":
            topics = self._lead.world.topics
            await topics.delete_subscription(self._lead.name, sub, self._check_term)
            self._forget(sub)
            return
        drained, parts = await self._cursors.drained(sub, self.records[sub])
        await self._save(
            sub,
            lambda found: groups.drain(
                replace(found, unfinished=None), self._lead.layout, drained, self.load_by_segment, parts
            ),
        )

    # Drained segments.

    def drained(self, event: Drained) -> None:
        """An owner says that a sealed segment is drained; noted now, looked at in turn."""
        segment = self._lead.find(event.segment)
        if segment is not None:
            self._drains.setdefault(event.subscription, set()).add(segment.id)
            self._post(self._take_drains)

    async def _take_drains(self) -> None:
        events, self._drains = self._drains, {}
        known = [sub for sub in sorted(events) if sub in self.records]
        await in_batches((self._follow_layout(sub, events[sub]) for sub in known), SETTLED_AT_ONCE)

    async def _follow_layout(self, sub: str, only: Collection[int] | None = None) -> None:
        """Record what is drained by now and deal the segments out again."""
        if self.records[sub].unfinished is not None:
            return
        drained, parts = await self._cursors.drained(sub, self.records[sub], only)
        await self._save(
            sub,
            lambda found: groups.drain(found, self._lead.layout, drained, self.load_by_segment, parts),
        )

    # Consumers.

    async def register(
        self,
        sub: str,
        name: str,
        kind: SubscriptionKind,
        start: StartAt | None,
        push: Push,
        said: RegistrationRequest,
    ) -> Membership:
        """Make the consumer a member, or give it back what it held."""
        if kind == "QUEUE":
            raise NotAllowedError("queue consumers read every segment and do not register")
        if not name:
            raise ConflictError("a consumer that registers needs a name")
        self._members.check_free(sub, name, said)
        await self.ensure(sub, kind, start, said.opened_in)

        def joined(found: SubscriptionRecord) -> SubscriptionRecord:
            return groups.join(found, self._lead.layout, name, self.load_by_segment, said)

        if joined(self.records[sub]) is not self.records[sub]:
            await self._save(sub, joined)
            self._changed()
        token = self._members.join(sub, name, push, said)
        return Membership(token, sub, name, self.assignment(sub, name), self._lead.record.incarnation)

    async def make_room(self, sub: str, name: str, said: RegistrationRequest) -> None:
        """Find out who else has the name: a connection nobody knows to be dead, a consumer on its way."""
        await self._members.make_room(sub, name, said)

    def admit(
        self, sub: str, kind: SubscriptionKind, segment_id: int, consumer_name: str, generation: int | None
    ) -> Admission:
        """Let a consumer attach to a segment, or raise ConsumerBusyError; queues are open to all."""
        record = self._existing(sub)
        if kind != "STREAM" or record.type != "STREAM":
            return Admission()
        name = admission.member_name(record, segment_id, consumer_name)
        try:
            grant = self._rosters.admit(sub, segment_id, consumer_name, generation)
        except ConsumerBusyError:
            self._remind(sub, name)
            raise
        if name is not None and grant.roster is not None and not grant.roster.reads(name):
            self._remind(sub, name)
        return grant

    def _remind(self, sub: str, name: str | None) -> None:
        for lease in self._members.of(sub):
            if lease.name == name:
                self._members.push_soon(sub, lease)

    def remind(self, sub: str) -> None:
        """Tell clients that may have missed what they read: others than ours drop what comes too early."""
        for name, member in self._existing(sub).consumers.items():
            if member.whole:
                self._remind(sub, name)

    def connection_lost(self, registration: Membership) -> None:
        """Start the grace period, unless the name belongs to another connection by now."""
        self._members.lost(registration.subscription, registration.token)

    def will_not_return(self, registration: Membership) -> None:
        """The consumer wanted to leave and could not: it counts as lost, and its grace period as over."""
        sub, token = registration.subscription, registration.token
        self._members.lost(sub, token)
        self._members.evict_later(sub, token, self._lead.world.settings.retry_first_s)

    async def leave(self, sub: str, token: int, *, only_lost: bool = False) -> None:
        """Remove the consumer that holds this token; a token that holds nothing is fine."""
        lease = self._members.holder(sub, token)
        if lease is None or (only_lost and lease.connected):
            return
        await self._save(
            sub, lambda found: groups.leave(found, self._lead.layout, lease.name, self.load_by_segment)
        )
        self._members.gone(sub, token)
        self._changed()

    def _grace_over(self, sub: str, token: int) -> None:
        # Asked for until the consumer is gone or back: a turn may also end before it comes to its work.
        self._members.evict_later(sub, token, self._lead.world.settings.retry_max_s)
        self._post(lambda: self.leave(sub, token, only_lost=True))

    def assignment(self, sub: str, name: str) -> Assignment:
        return groups.assignment(self.records[sub], self._lead.layout, self._lead.name, name)

    def _assigned(self, sub: str, name: str) -> Assignment | None:
        return self.assignment(sub, name) if sub in self.records else None

    @property
    def any_connected(self) -> bool:
        return self._members.connected()

    def members_max(self, *, sharing: bool) -> int:
        """The most consumers of one subscription that can share a segment by buckets, or that cannot."""
        records = self.records.values()
        return max((len(r.consumers) for r in records if groups.shares(r) == sharing), default=0)

    def tell_deleted(self) -> None:
        """The topic is gone: every consumer reads nothing from now on."""
        for sub in self.records:
            self._members.say_farewell(sub, self._nothing(sub), come_back=True)

    def describe(self) -> dict[str, dict[str, object]]:
        """Each subscription for people: its state, what it waits for, who is a member."""
        return {
            sub: {
                **reports.subscription_state(record, self._lead.layout),
                "trouble": self.troubles.get(sub),
                "unreached": self._rosters.unreached(sub),
                "consumers": reports.consumers(record, self._members.of(sub), self._members.seconds_left),
            }
            for sub, record in sorted(self.records.items())
        }

    # Records.

    def _existing(self, sub: str) -> SubscriptionRecord:
        record = self.records.get(sub)
        if record is None:
            raise SubscriptionNotFoundError(f"{self._lead.name} has no subscription {sub}")
        return record

    def _check_term(self, record: SubscriptionRecord) -> None:
        if record.term != self._lead.term:
            raise StaleTermError(f"a leader of term {record.term} changes subscriptions of {self._lead.name}")

    async def _save(self, sub: str, change: SubscriptionChange) -> SubscriptionRecord:
        def existing(found: SubscriptionRecord | None) -> SubscriptionRecord:
            if found is None:
                raise SubscriptionNotFoundError(f"{self._lead.name} has no subscription {sub}")
            return change(found)

        return await self._store(sub, existing)

    async def _store(
        self, sub: str, change: Callable[[SubscriptionRecord | None], SubscriptionRecord]
    ) -> SubscriptionRecord:
        def fenced(found: SubscriptionRecord | None) -> SubscriptionRecord:
            if found is not None:
                self._check_term(found)
            return change(found)

        self._install(sub, await self._lead.world.topics.update_subscription(self._lead.name, sub, fenced))
        await self._tell()
        return self.records[sub]

    def _install(self, sub: str, record: SubscriptionRecord) -> None:
        """Go by this record from now on; `_tell` says so to all whom it concerns."""
        before = self.records.get(sub, record)
        known = sub in self.records
        self.records[sub] = record
        self._rosters.changed(sub, before, record)
        for lease in self._members.of(sub):
            if not known or before.consumers.get(lease.name) != record.consumers.get(lease.name):
                self._untold[sub, lease.name] = None

    async def _tell(self) -> None:
        """Owners first: when a consumer hears what it reads, those who read it before can read no more."""
        untold, self._untold = self._untold, {}
        try:
            await self._rosters.send()
        finally:
            for sub, name in untold:
                self._remind(sub, name)

    def _forget(self, sub: str) -> None:
        self._members.say_farewell(sub, self._nothing(sub))
        self._members.fit(sub, {})
        del self.records[sub]
        self._rosters.forget(sub)
        self.troubles.pop(sub, None)
        self._stale.pop(sub, None)

    def _nothing(self, sub: str) -> Assignment:
        """The last thing a consumer is told."""
        return Assignment(self._lead.layout.epoch, self.records[sub].generation + 1)

    async def _reach(self, step: str) -> None:
        await self._lead.world.failpoints.reach(f"subscription.{step}")
