"""Judges changes of the metadata and of memberships at the moment they happen.

Knows the invariants and not how the system under test keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.ledger.storage import SegmentLog
from anabranch.metadata import records
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.memory import MemoryTree, _Value
from anabranch.metadata.records import StoreRecord, SubscriptionRecord, TopicRecord
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.judges.checkers import ClientHistory
from simulation.judges.wire_events import RegistrationSeen, WireListener
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

Member = tuple[str, str]
"""A subscription and the name of one of its consumers."""

MOMENT_S = 1e-6
"""No message arrives sooner; events closer together than this may be seen in any order."""


class WitnessedTree(MemoryTree):
    """A metadata tree that reports each change as it is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Callable[[str, bytes | None, bytes | None], None] = lambda path, before, after: None

    def put(self, path: str, value: _Value) -> None:
        before = self.values.get(path)
        super().put(path, value)
        self.seen(path, None if before is None else before.value, value.value)

    def remove(self, path: str) -> None:
        before = self.values[path]
        super().remove(path)
        self.seen(path, before.value, None)


@dataclass(frozen=True)
class WitnessSettings:
    """The topic to watch, and the ways to look at it."""

    topic: TopicName
    ordered: frozenset[str]
    """Subscriptions that promise order."""
    grace_s: float
    """A consumer without a connection keeps its place for this long."""
    log_of: Callable[[str], SegmentLog | None]
    leads: Callable[[SimProcess | None], bool]
    committed: Callable[[Layout], None]
    """Called with each new layout."""


class MetadataWitness(WireListener):
    """Watches the layouts, terms and memberships of one topic."""

    def __init__(
        self, loop: SimLoop, history: ClientHistory, counts: Counter[str], settings: WitnessSettings
    ) -> None:
        self._loop = loop
        self._history = history
        self._counts = counts
        self._settings = settings
        self.record: TopicRecord | None = None
        self.layout: Layout | None = None
        self.subscriptions: dict[str, SubscriptionRecord] = {}
        self._stores: dict[int, StoreRecord] = {}
        self._ends: dict[int, int] = {}
        """By sealed segment: its number of entries when a layout first sealed it."""
        self._since: dict[tuple[str, str, int], int] = {}
        """By subscription, consumer and segment: the generation in which the consumer got the segment."""
        self._connected: dict[Member, RegistrationSeen] = {}
        self._cut_off_at: dict[RegistrationSeen, float] = {}
        """For registrations through another broker: when its connection to the leader first ended."""
        self._lost_at: dict[Member, float] = {}
        self._left: dict[Member, None] = {}
        self._dealt: dict[str, tuple[object, ...]] = {}

    def _wrong(self, text: str) -> None:
        if text not in self._history.witnessed:
            self._loop.note(f"wrong: {text}")
            self._history.witnessed.append(text)

    def changed(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """Take in a stored value; None is a removed one."""
        base = records.topic_path(self._settings.topic)
        if path == base and after is not None:
            self._topic_changed(records.decode(TopicRecord, after))
        elif path.startswith(f"{base}/subscriptions/"):
            sub = path.rpartition("/")[2]
            if after is None:
                self.subscriptions.pop(sub, None)
            else:
                self._subscription_changed(sub, records.decode(SubscriptionRecord, after))
        elif path.startswith(f"{records.STORES}/") and after is not None:
            self._store_changed(int(path.rpartition("/")[2]), records.decode(StoreRecord, after))

    def _store_changed(self, store: int, record: StoreRecord) -> None:
        """The owners of a store claim it in rising terms (W1)."""
        before = self._stores.get(store)
        self._stores[store] = record
        if record.owner is not None:
            self._counts["store given to another broker"] += record.owner != store
            self._counts["store given back"] += (
                before is not None and record.owner == store and before.owner != store
            )
            if before is not None and record.term <= before.term:
                self._wrong(f"store {store} was claimed in term {record.term} after term {before.term}")

    def _topic_changed(self, record: TopicRecord) -> None:
        before, self.record = self.record, record
        if before is not None and record.term < before.term:
            self._wrong(f"a leader of term {record.term} wrote the topic after one of term {before.term}")
        if before is not None and record.term > before.term:
            # A new leader knows no connection; each consumer has a whole grace period to register.
            self._lost_at.update(dict.fromkeys(self._connected, self._loop.time()))
            self._connected.clear()
        if record.deleted or (before is not None and before.epoch == record.epoch):
            return
        layout = self.layout = layout_of(record)
        self._history.layout(layout)
        for segment in layout.sealed:
            log = self._log(segment.id)
            if log is None:
                continue
            if not log.sealed:
                self._wrong(f"epoch {layout.epoch} seals segment {segment.id}, whose log is open")
            self._check_end(segment.id, log)
        self._settings.committed(layout)

    def _check_end(self, segment: int, log: SegmentLog) -> None:
        """The end of a sealed segment never moves (L2)."""
        end = self._ends.setdefault(segment, log.extent.next_ordinal)
        if log.extent.next_ordinal != end:
            self._wrong(f"sealed segment {segment} had {end} entries and has {log.extent.next_ordinal}")

    def _subscription_changed(self, sub: str, record: SubscriptionRecord) -> None:
        before = self.subscriptions.get(sub)
        self.subscriptions[sub] = record
        if before is not None and (record.term, record.generation) < (before.term, before.generation):
            self._wrong(
                f"{sub}: (term, generation) fell from {(before.term, before.generation)} "
                f"to {(record.term, record.generation)}"
            )
        self._check_sharing(sub, record)
        if before is not None:
            self._check_departures(sub, before, record)
            self._check_disturbance(sub, before, record)
        for name, consumer in record.consumers.items():
            former = None if before is None else before.consumers.get(name)
            known = frozenset(() if former is None else (held.segment_id for held in former.segments))
            for held in consumer.segments:
                if held.segment_id not in known:
                    self._since[sub, name, held.segment_id] = record.generation
        self._dealt[sub] = self._causes(record)

    def is_unfinished(self, sub: str) -> bool:
        """Whether an operation on a subscription is under way."""
        record = self.subscriptions.get(sub)
        return record is not None and record.unfinished is not None

    def check_cursors(self, sub: str) -> None:
        """A confirmed subscription from earliest, not used yet, has every message of active segments (L3)."""
        for segment in () if self.layout is None else self.layout.active:
            log = self._log(segment.id)
            if log is not None and sub not in log.cursors:
                self._wrong(f"segment {segment.id} lacks the subscription {sub}")
            elif log is not None and log.cursors[sub].acks.mark > log.extent.first_ordinal:
                self._wrong(f"the subscription {sub} misses messages of segment {segment.id}")

    def _check_sharing(self, sub: str, record: SubscriptionRecord) -> None:
        """A segment has one reader, or all of its readers share it (W1)."""
        readers: dict[int, list[tuple[str, bool]]] = {}
        for name, consumer in sorted(record.consumers.items()):
            if consumer.generation > record.generation:
                self._wrong(f"{sub}: {name} has generation {consumer.generation} of {record.generation}")
            for held in consumer.segments:
                readers.setdefault(held.segment_id, []).append((name, held.shared))
        for segment, found in readers.items():
            if len(found) > 1 and not all(shared for _, shared in found):
                names = ", ".join(name for name, _ in found)
                self._wrong(f"{sub}: segment {segment} is given to {names}, not shared")

    def _check_departures(self, sub: str, before: SubscriptionRecord, after: SubscriptionRecord) -> None:
        """A consumer is evicted only after it left, or after a grace period without a connection (R1)."""
        grace_s = self._settings.grace_s
        for name in sorted(before.consumers.keys() - after.consumers.keys()):
            member = sub, name
            if self._left.pop(member, 0) is None:
                continue
            self._counts["consumer evicted"] += 1
            lost_at = self._lost_at.get(member, -grace_s)
            connected = self._connected.get(member)
            if connected in self._cut_off_at:
                self._counts["evicted behind another broker"] += 1
                lost_at = self._cut_off_at[connected]
            gone_s = self._loop.time() - lost_at
            if connected is not None and connected not in self._cut_off_at:
                self._wrong(f"{sub}: {name} was evicted while it was connected")
            elif gone_s < grace_s - MOMENT_S:
                self._wrong(f"{sub}: {name} was evicted after {gone_s:.3f} s, not {grace_s:g} s")

    def _check_disturbance(self, sub: str, before: SubscriptionRecord, after: SubscriptionRecord) -> None:
        """Assignments do not change without a cause (R1)."""
        if self._dealt.get(sub) == self._causes(after):
            for name in sorted(after.consumers):
                if before.consumers[name].segments != after.consumers[name].segments:
                    self._wrong(f"{sub}: {name} was given other segments without a cause")

    def _causes(self, record: SubscriptionRecord) -> tuple[object, ...]:
        """Return all causes of another assignment except load."""
        members = tuple(
            (name, one.whole, one.finished, repr(one.partly_finished), repr(one.leaving))
            for name, one in sorted(record.consumers.items())
        )
        fields = tuple(
            repr(getattr(record, name))
            for name in record.__struct_fields__
            if name not in ("consumers", "generation", "term")
        )
        return members, fields, None if self.record is None else self.record.epoch

    def registered(self, member: RegistrationSeen, assignment: pb.ScalableConsumerAssignment) -> None:
        key = member.subscription, member.name
        if self._lost_at.pop(key, None) is not None:
            self._counts["reconnected"] += 1
        other = self._connected.get(key)
        if other is not None and other.client != member.client:
            self._wrong(f"{member.subscription}: {member.name} is registered by two clients at once")
        self._connected[key] = member
        self._left.pop(key, None)
        self.assigned(member, assignment)

    def assigned(self, member: RegistrationSeen, assignment: pb.ScalableConsumerAssignment) -> None:
        """The generations sent to a consumer never fall (W1)."""
        if assignment.generation < member.generation:
            self._wrong(
                f"{member.subscription}: {member.name} was sent generation {assignment.generation} "
                f"after {member.generation}"
            )
        member.generation = assignment.generation

    def leaving(self, member: RegistrationSeen) -> None:
        key = member.subscription, member.name
        connected = self._connected.get(key)
        # A member of a checkpoint group registers again with each report.
        if connected is None or connected.client == member.client:
            self._connected.pop(key, None)
            self._left[key] = None

    def registration_lost(self, member: RegistrationSeen) -> None:
        key = member.subscription, member.name
        if self._connected.get(key) is member:
            del self._connected[key]
            self._lost_at[key] = self._loop.time()

    def peer_lost(self, broker: SimProcess | None, peer: str) -> None:
        """The leader loses the registrations through that broker; their consumers may not notice."""
        if self._settings.leads(broker):
            for member in self._connected.values():
                if member.broker is not None and member.broker.name == peer:
                    self._cut_off_at.setdefault(member, self._loop.time())

    def _log(self, segment: int) -> SegmentLog | None:
        if self.layout is None or segment not in self.layout.segments:
            return None
        name = self._settings.topic.segment_name(self.layout.segments[segment].range, segment)
        return self._settings.log_of(str(name))
