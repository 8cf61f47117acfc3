"""Judges deliveries and acknowledgements at the moment they happen, from the wire and the logs of owners.

A violation goes into the history in words; an event that can be judged only at the end goes there as a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from anabranch.ledger.storage import SegmentLog
from anabranch.model.hashing import bucket_index
from anabranch.model.ids import Position
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.outer import read_outer
from simulation.judges.checkers import ClientHistory, Early, Waiting
from simulation.judges.metadata_witness import MOMENT_S, MetadataWitness, WitnessSettings
from simulation.judges.wire_events import AckSeen, AttachSeen, Watch
from simulation.world.loop import SimLoop


class Witness(MetadataWitness):
    """Watches the deliveries of one topic, and its metadata."""

    def __init__(
        self, loop: SimLoop, history: ClientHistory, counts: Counter[str], settings: WitnessSettings
    ) -> None:
        super().__init__(loop, history, counts, settings)
        self._consumers: dict[AttachSeen, None] = {}
        self._owners: dict[tuple[str, int, int], tuple[AttachSeen, int]] = {}
        """By subscription, segment and bucket: the last consumer that got an entry, and its generation."""
        self._doubts: list[tuple[float, AttachSeen, str]] = []
        """Violations, unless the consumer turns out to have detached at the same moment."""
        self._held: dict[AttachSeen, list[AttachSeen]] = {}
        self._acked: dict[tuple[str, int], list[AckSeen]] = {}

    def attached(self, consumer: AttachSeen) -> None:
        if consumer.durable and consumer.topic.topic == self._settings.topic:
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
        if sub not in self._settings.ordered:
            return
        self._check_hold(consumer, position, delivery)
        consumer.in_flight[position] = delivery
        self.check_ancestors(consumer, position)

    def _check_hold(self, consumer: AttachSeen, position: Position, delivery: Delivery) -> None:
        """No other consumer holds entries of this bucket (W3) or got it in a newer generation (W1)."""
        sub, segment = consumer.subscription, consumer.segment
        bucket = self._bucket(consumer, delivery)
        log = self._log(segment)
        for other in self._others(consumer):
            self._forget_acknowledged(other, log)
            held = [
                at
                for at, given in other.in_flight.items()
                if consumer.alone or other.alone or self._bucket(other, given) == bucket
            ]
            if held:
                at = f"{other} at {'no broker' if other.broker is None else other.broker.name}"
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

    def check_ancestors(self, consumer: AttachSeen, position: Position) -> None:
        """Note unacknowledged entries of ancestors; a checker compares their keys at the end (O3)."""
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
        """A former reader of a segment acknowledges no entry that its present reader holds (W2)."""
        # The present reader may acknowledge it: an earlier connection of it received the entry.
        if consumer.subscription in self._settings.ordered and not self._owns(consumer):
            self._held[consumer] = self._others(consumer)
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
        """Expect acknowledged messages again, because the subscription seeks back."""
        for key in [key for key in self._acked if key[0] == sub]:
            del self._acked[key]

    def ack_confirmed(self, consumer: AttachSeen, acked: AckSeen) -> None:
        if consumer in self._consumers and consumer.subscription not in self._history.rewound:
            self._acked.setdefault((consumer.subscription, consumer.segment), []).append(acked)

    def ack_refused(self, consumer: AttachSeen) -> None:
        self._counts["acknowledgement refused"] += 1

    def _others(self, consumer: AttachSeen) -> list[AttachSeen]:
        """Return the other consumers of the same subscription and segment."""
        place = consumer.subscription, consumer.segment
        alike = [other for other in self._consumers if (other.subscription, other.segment) == place]
        return [other for other in alike if other is not consumer]

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
            exists = ordinal < log.extent.next_ordinal and log.extent.position_of(ordinal) == at
            if not exists or ordinal in cursor.acks:
                del consumer.in_flight[at]

    def _doubt(self, other: AttachSeen, text: str) -> None:
        self._doubts.append((self._loop.time(), other, text))

    def settle_doubts(self) -> None:
        """Report the remaining doubts as violations; call when time has moved."""
        for _, _, text in self._doubts:
            self._wrong(text)
        self._doubts.clear()

    def _bucket(self, consumer: AttachSeen, delivery: Delivery) -> int:
        segment = None if self.layout is None else self.layout.segments.get(consumer.segment)
        if segment is None:
            return 0
        return bucket_index(segment.bucket_splits, read_outer(delivery.data).bucket_hash)

    def stored(self, topic: TopicName, position: Position) -> None:
        """A child stores an entry only after its parents are sealed (L2)."""
        if topic.topic != self._settings.topic or topic.segment is None or self.layout is None:
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

    def layout_sent(self, watch: Watch, epoch: int) -> None:
        """The epochs sent to a client never fall, also from one session to the next (L6)."""
        least = max(watch.known, watch.sent)
        if epoch < least:
            self._wrong(f"{watch.client} was sent epoch {epoch} after epoch {least}")


def behind(watches: Iterable[Watch], newest: Mapping[str, int]) -> list[str]:
    """Return the clients that have not received the newest epoch of their topic (L6)."""
    return [
        f"{watch.client} knows epoch {watch.sent} of {newest[watch.topic]}"
        for watch in watches
        if watch.sent < newest.get(watch.topic, -1)
    ]
