"""The judges of a run with control processes: segments are topics of a simulated Pulsar."""

from __future__ import annotations

from anabranch.ledger.storage import SegmentLog
from anabranch.metadata.layouts import layout_of
from anabranch.model.ids import Position
from anabranch.model.layout import Segment
from anabranch.model.log_names.pulsar_names import pulsar_topic, segment_in
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.cluster.control_cluster import ControlCluster
from simulation.judges.audit import Audit
from simulation.judges.wire_events import AttachSeen, RegistrationSeen
from simulation.judges.witness import Witness
from simulation.runs.readers import TOPIC, Readers
from simulation.runs.requests import OTHER, Requests

POLICIES = frozenset(["retention", "deduplicationEnabled"])
"""The policies that every topic of a segment must have."""


STRANGER = TOPIC.segment_name(HashRange(0, 0xFF), 0)
"""A topic of another control plane: it is named like a segment and is in no layout of this cluster."""


class ControlWitness(Witness):
    """Reads the names of Pulsar's topics as those of segments."""

    def attached(self, consumer: AttachSeen) -> None:
        consumer.topic = segment_in(consumer.topic) or consumer.topic
        super().attached(consumer)

    def registered(self, member: RegistrationSeen, assignment: pb.ScalableConsumerAssignment) -> None:
        # A queue consumer registers its subscription without a name, and is not a member of a group.
        if member.name:
            super().registered(member, assignment)

    def check_ancestors(self, consumer: AttachSeen, position: Position) -> None:
        # Pulsar keeps no roster: a reader that does not know of a seek yet reads on while a parent rewinds.
        if consumer.subscription not in self._history.rewound:
            super().check_ancestors(consumer, position)

    def stored(self, topic: TopicName, position: Position) -> None:
        super().stored(segment_in(topic) or topic, position)


class ControlAudit(Audit):
    """The judges of one run over a simulated Pulsar."""

    witness_kind = ControlWitness

    def __init__(self, cluster: ControlCluster, readers: Readers, asked: Requests, found: list[str]) -> None:
        super().__init__(cluster, readers, asked, found)
        self._pulsar = cluster

    async def look_over(self) -> list[str]:
        return await super().look_over() + await self._strays() + await self._forgetful()

    def look_at(self, segment: Segment, log: SegmentLog | None) -> list[str]:
        """A late call may leave a cursor of a deleted subscription, which counts for nothing."""
        if log is None:
            return [f"segment {segment.id} has no topic at Pulsar"]
        if log.sealed == segment.active:
            return [f"segment {segment.id} is {segment.state}, its topic at Pulsar is not"]
        return self.absent(segment, log.cursors)

    async def _forgetful(self) -> list[str]:
        """Topics of segments that forget acknowledged messages, or do not recognise repetitions."""
        record = await self._pulsar.record(TOPIC)
        assert record is not None
        wrong = []
        for segment in layout_of(record).segments.values():
            name = pulsar_topic(TOPIC.segment_name(segment.range, segment.id))
            missing = POLICIES - (await self._pulsar.pulsar_policies(name)).keys()
            wrong += [f"{name} has no policy {policy}" for policy in sorted(missing)]
        return wrong

    async def _strays(self) -> list[str]:
        """Topics of segments at Pulsar that no layout names; that of another control plane must stay."""
        wanted: set[TopicName] = set()
        for topic in (TOPIC, OTHER):
            record = await self._pulsar.record(topic)
            if record is not None:
                wanted |= {topic.segment_name(s.range, s.id) for s in layout_of(record).segments.values()}
        found = {segment_in(name): None for name in await self._pulsar.pulsar_topics()}
        wrong = [] if STRANGER in found else [f"{STRANGER} of another control plane was deleted"]
        strays = (one for one in found if one not in (None, STRANGER, *wanted))
        return wrong + [f"{one} is a stray at Pulsar" for one in strays]
