"""Judges on the spot what cannot be judged later: who was given what while who held what, and who wrote it.

Sees every command on the wire, every change of the metadata and the logs of whoever serves them, at the
moment something happens. What it finds wrong goes into the history in words; what only the end can tell goes
there as an event. It knows the invariants and not how the system under test keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from anabranch.ledger.storage import SegmentLog
from anabranch.metadata import records
from anabranch.metadata.memory import MemoryTree, _Value
from anabranch.metadata.records import StoreRecord, SubscriptionRecord, TopicRecord
from anabranch.metadata.topics import layout_of
from anabranch.model.hashing import bucket_index
from anabranch.model.ids import Position
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery, read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.testing.checkers import ClientHistory, Early, Waiting
from anabranch.testing.simloop import SimLoop, SimProcess
from anabranch.testing.wiretap import AckSeen, AttachSeen, Listener, RegistrationSeen, Watch

Member = tuple[str, str]
"""A subscription and the name of one of its consumers."""

MOMENT_S = 1e-6
"""Nothing that travels arrives sooner; what happens closer together may be noticed in any order."""


class WitnessedTree(MemoryTree):
    """A metadata tree that shows each change as it is applied."""

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


class Witness(Listener):
    """Watches one topic of one run.

    `log_of` finds the log of a segment at whoever serves it now; `leads` says who leads the topic; `ordered`
    are the subscriptions that promise order; `committed` is told each new layout.
    """

    def __init__(
        self,
        loop: SimLoop,
        history: ClientHistory,
        counts: Counter[str],
        topic: TopicName,
        *,
        ordered: Iterable[str],
        grace_s: float,
        log_of: Callable[[str], SegmentLog | None],
        leads: Callable[[SimProcess | None], bool],
        committed: Callable[[Layout], None],
    ) -> None:
        self._loop = loop
        self._history = history
        self._counts = counts
        self._topic = topic
        self._ordered = frozenset(ordered)
        self._grace_s = grace_s
        self._log_of = log_of
        self._leads = leads
        self._committed = committed
        self.record: TopicRecord | None = None
        self.layout: Layout | None = None
        self.subscriptions: dict[str, SubscriptionRecord] = {}
        self._stores: dict[int, StoreRecord] = {}
        self._consumers: dict[AttachSeen, None] = {}
        self._owners: dict[tuple[str, int, int], tuple[AttachSeen, int]] = {}
        """By subscription, segment and bucket: who was given an entry last, and its generation."""
        self._doubts: list[tuple[float, AttachSeen, str]] = []
        """Found wrong unless this consumer turns out to have gone at the same moment."""
        self._held: dict[AttachSeen, list[AttachSeen]] = {}
        self._acked: dict[tuple[str, int], list[AckSeen]] = {}
        self._ends: dict[int, int] = {}
        """By sealed segment: how many entries it had when a layout first said so."""
        self._since: dict[tuple[str, str, int], int] = {}
        """By subscription, consumer and segment: the generation in which it was given to it last."""
        self._connected: dict[Member, RegistrationSeen] = {}
        self._cut_off_at: dict[RegistrationSeen, float] = {}
        """Those who registered through another broker: when a connection of it to the leader first ended."""
        self._lost_at: dict[Member, float] = {}
        self._left: dict[Member, None] = {}
        self._dealt: dict[str, tuple[object, ...]] = {}

    def _wrong(self, text: str) -> None:
        if text not in self._history.witnessed:
            self._loop.note(f"wrong: {text}")
            self._history.witnessed.append(text)

    # Metadata: layouts, terms, assignments.

    def changed(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """A value was stored (or removed: None)."""
        base = records.topic_path(self._topic)
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
        """Who owns a store says so in rising terms (W1)."""
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
            # A new leader knows no connection; everybody has a whole grace period to come to it.
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
        self._committed(layout)

    def _check_end(self, segment: int, log: SegmentLog) -> None:
        """The end of a sealed segment stays where it is (L2)."""
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

    def _check_sharing(self, sub: str, record: SubscriptionRecord) -> None:
        """A segment has one reader, or readers that all share it (W1)."""
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
        """Who did not leave is evicted only after a whole grace period without a connection (R1)."""
        for name in sorted(before.consumers.keys() - after.consumers.keys()):
            member = sub, name
            if self._left.pop(member, 0) is None:
                continue
            self._counts["consumer evicted"] += 1
            lost_at = self._lost_at.get(member, -self._grace_s)
            connected = self._connected.get(member)
            if connected in self._cut_off_at:
                self._counts["evicted behind another broker"] += 1
                lost_at = self._cut_off_at[connected]
            gone_s = self._loop.time() - lost_at
            if connected is not None and connected not in self._cut_off_at:
                self._wrong(f"{sub}: {name} was evicted while it was connected")
            elif gone_s < self._grace_s - MOMENT_S:
                self._wrong(f"{sub}: {name} was evicted after {gone_s:.3f} s, not {self._grace_s:g} s")

    def _check_disturbance(self, sub: str, before: SubscriptionRecord, after: SubscriptionRecord) -> None:
        """Segments are not dealt out again without a cause (R1)."""
        if self._dealt.get(sub) == self._causes(after):
            for name in sorted(after.consumers):
                if before.consumers[name].segments != after.consumers[name].segments:
                    self._wrong(f"{sub}: {name} was given other segments without a cause")

    def _causes(self, record: SubscriptionRecord) -> tuple[object, ...]:
        """Everything but the load that may lead to another assignment."""
        members = tuple((name, consumer.whole) for name, consumer in sorted(record.consumers.items()))
        fields = tuple(
            repr(getattr(record, name))
            for name in record.__struct_fields__
            if name not in ("consumers", "generation", "term")
        )
        return members, fields, None if self.record is None else self.record.epoch

    # Registered consumers.

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
        """What a consumer is told never gets older (W1)."""
        if assignment.generation < member.generation:
            self._wrong(
                f"{member.subscription}: {member.name} was told generation {assignment.generation} "
                f"after {member.generation}"
            )
        member.generation = assignment.generation

    def leaving(self, member: RegistrationSeen) -> None:
        key = member.subscription, member.name
        if self._connected.get(key) is member:
            del self._connected[key]
            self._left[key] = None

    def registration_lost(self, member: RegistrationSeen) -> None:
        key = member.subscription, member.name
        if self._connected.get(key) is member:
            del self._connected[key]
            self._lost_at[key] = self._loop.time()

    def peer_lost(self, broker: SimProcess | None, peer: str) -> None:
        """Who had registered through that broker is lost to the leader, and may not know."""
        if self._leads(broker):
            for member in self._connected.values():
                if member.broker is not None and member.broker.name == peer:
                    self._cut_off_at.setdefault(member, self._loop.time())

    # Deliveries and acknowledgements.

    def attached(self, consumer: AttachSeen) -> None:
        if consumer.durable and consumer.topic.topic == self._topic:
            self._consumers[consumer] = None

    def detached(self, consumer: AttachSeen) -> None:
        self._consumers.pop(consumer, None)
        now = self._loop.time()
        self._doubts = [d for d in self._doubts if d[1] is not consumer or now - d[0] > MOMENT_S]

    def dispatched(self, consumer: AttachSeen, delivery: Delivery) -> None:
        if consumer not in self._consumers:
            return
        position = Position(delivery.ledger, delivery.entry)
        sub, segment = consumer.subscription, consumer.segment
        if any(acked.covers(position) for acked in self._acked.get((sub, segment), ())):
            self._wrong(f"{sub}: {position} of segment {segment} was sent after its ack was confirmed")
        if sub not in self._ordered:
            return
        self._check_hold(consumer, position, delivery)
        consumer.in_flight[position] = delivery
        self._check_ancestors(consumer, position)

    def _check_hold(self, consumer: AttachSeen, position: Position, delivery: Delivery) -> None:
        """Nobody else holds entries of this bucket (W3), or was given it in a newer generation (W1)."""
        sub, segment = consumer.subscription, consumer.segment
        bucket = self._bucket(consumer, delivery)
        log = self._log(segment)
        for other in self._consumers:
            if other is consumer or (other.subscription, other.segment) != (sub, segment):
                continue
            self._forget_acknowledged(other, log)
            held = [
                at
                for at, given in other.in_flight.items()
                if consumer.alone or other.alone or self._bucket(other, given) == bucket
            ]
            if held:
                at = f"{other} at {_where(other)}"
                self._doubt(other, f"{sub}: {consumer} was given {position} while {at} holds {held[0]}")
        generation = self._since.get((sub, consumer.name, segment), -1)
        former = self._owners.get((sub, segment, bucket))
        if former is not None and former[0].name != consumer.name:
            self._counts["bucket changed hands"] += 1
            if consumer.alone and former[0].alone and generation < former[1]:
                self._wrong(
                    f"{sub}: {consumer} of generation {generation} was given {position} "
                    f"after {former[0].name} of generation {former[1]}"
                )
        self._owners[sub, segment, bucket] = consumer, generation

    def _check_ancestors(self, consumer: AttachSeen, position: Position) -> None:
        """Note what waits in the ancestors; whether it has the same key is known at the end (O3)."""
        if self.layout is None or consumer.segment not in self.layout.segments:
            return
        waiting: list[Waiting] = []
        for id_ in sorted(self.layout.ancestors(consumer.segment)):
            log = self._log(id_)
            cursor = None if log is None else log.cursors.get(consumer.subscription)
            if log is None or cursor is None:
                continue
            ordinal = cursor.acks.next_pending(max(cursor.acks.mark, log.extent.first_ordinal))
            while ordinal < log.extent.next_ordinal:
                at = log.extent.position_of(ordinal)
                waiting.append(Waiting(id_, at, cursor.acks.remaining(ordinal)))
                ordinal = cursor.acks.next_pending(ordinal + 1)
        if waiting:
            self._counts["dispatched beside an ancestor"] += 1
            place = consumer.segment, position
            self._history.early.append(Early(consumer.subscription, consumer.name, *place, tuple(waiting)))

    def acknowledging(self, consumer: AttachSeen) -> None:
        """Who does not own a segment any more acknowledges nothing that its owner holds (W2).

        An owner may: it was given the entry by an earlier connection, and kept it.
        """
        if consumer.subscription in self._ordered and not self._owns(consumer):
            self._held[consumer] = [
                other
                for other in self._consumers
                if other is not consumer
                and (other.subscription, other.segment) == (consumer.subscription, consumer.segment)
            ]
            log = self._log(consumer.segment)
            for other in self._held[consumer]:
                self._forget_acknowledged(other, log)

    def acknowledged(self, consumer: AttachSeen) -> None:
        log = self._log(consumer.segment)
        for other in self._held.pop(consumer, ()):
            before = dict(other.in_flight)
            self._forget_acknowledged(other, log)
            gone = [at for at in before if at not in other.in_flight]
            if gone:
                self._doubt(
                    other, f"{consumer.subscription}: {consumer} acknowledged {gone[0]}, which {other} holds"
                )
        self._forget_acknowledged(consumer, log)

    def rewind(self, sub: str) -> None:
        """What was acknowledged so far may come again."""
        for key in [key for key in self._acked if key[0] == sub]:
            del self._acked[key]

    def ack_confirmed(self, consumer: AttachSeen, acked: AckSeen) -> None:
        if consumer in self._consumers and consumer.subscription not in self._history.rewound:
            self._acked.setdefault((consumer.subscription, consumer.segment), []).append(acked)

    def ack_refused(self, consumer: AttachSeen) -> None:
        self._counts["acknowledgement refused"] += 1

    def _owns(self, consumer: AttachSeen) -> bool:
        record = self.subscriptions.get(consumer.subscription)
        member = None if record is None else record.consumers.get(consumer.name)
        return member is not None and any(held.segment_id == consumer.segment for held in member.segments)

    def _forget_acknowledged(self, consumer: AttachSeen, log: SegmentLog | None) -> None:
        cursor = None if log is None else log.cursors.get(consumer.subscription)
        if log is None or cursor is None:
            return
        for at in list(consumer.in_flight):
            ordinal = log.extent.ordinal_of(at)
            if (
                ordinal >= log.extent.next_ordinal
                or log.extent.position_of(ordinal) != at
                or ordinal in cursor.acks
            ):
                del consumer.in_flight[at]

    def _doubt(self, other: AttachSeen, text: str) -> None:
        self._doubts.append((self._loop.time(), other, text))

    def settle_doubts(self) -> None:
        """Nobody has gone in time: what was doubtful is wrong. Call when time has moved."""
        for _, _, text in self._doubts:
            self._wrong(text)
        self._doubts.clear()

    def _bucket(self, consumer: AttachSeen, delivery: Delivery) -> int:
        layout = self.layout
        segment = None if layout is None else layout.segments.get(consumer.segment)
        return (
            0
            if segment is None
            else bucket_index(segment.bucket_splits, read_outer(delivery.data).bucket_hash)
        )

    # Producers and layouts told.

    def stored(self, topic: TopicName, position: Position) -> None:
        """A child takes a write only when its parents are sealed for good (L2)."""
        if topic.topic != self._topic or topic.segment is None or self.layout is None:
            return
        segment = self.layout.segments.get(topic.segment.id)
        if segment is None:
            self._wrong(f"segment {topic.segment.id} stored {position} and is in no layout")
            return
        log = self._log(segment.id)
        if log is not None and not segment.active:
            self._check_end(segment.id, log)
        for id_ in segment.parents:
            parent = self._log(id_)
            if parent is not None:
                if not parent.sealed:
                    self._wrong(f"segment {segment.id} stored {position} while its parent {id_} is open")
                self._check_end(id_, parent)

    def layout_told(self, watch: Watch, epoch: int) -> None:
        """What a client is told never falls: in a session, and from one to the next (L6)."""
        least = max(watch.known, watch.told)
        if epoch < least:
            self._wrong(f"{watch.client} was told epoch {epoch} after epoch {least}")

    def _log(self, segment: int) -> SegmentLog | None:
        layout = self.layout
        if layout is None or segment not in layout.segments:
            return None
        return self._log_of(str(self._topic.segment_name(layout.segments[segment].range, segment)))


def behind(watches: Iterable[Watch], newest: Mapping[str, int]) -> list[str]:
    """The clients that have not been told the newest epoch of their topic (L6)."""
    return [
        f"{watch.client} knows epoch {watch.told} of {newest[watch.topic]}"
        for watch in watches
        if watch.told < newest.get(watch.topic, -1)
    ]


def _where(consumer: AttachSeen) -> str:
    return "no broker" if consumer.broker is None else consumer.broker.name
