"""Turns events of a simulated cluster into one plain line each, for a reviewer.

The events come from the wire and from the metadata tree: a call inside one broker gives no line. The trace
must not know which command caused an event.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from anabranch.metadata import records
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import IntentRecord, StoreRecord, SubscriptionRecord, TopicRecord
from anabranch.model.hashing import bucket_hash, bucket_index, key_hash
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.judges.wire_events import AttachSeen, RegistrationSeen, Watch, WireListener
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

PEER_CALLS = {
    ("segments", "create"): "create segment {}",
    ("segments", "seal"): "seal segment {}",
    ("segments", "inherit"): "store the sequence ids that segment {} inherits",
    ("segments", "restrict"): "apply the roster of segment {}",
    ("segments", "drained"): "say how much of segment {} is drained",
    ("controller", "drained"): "note that segment {} is drained, whole or in part",
}
"""By target and verb, the calls between brokers that a reviewer wants to see."""


class Trace(WireListener):
    """The lines since the last command, for one topic."""

    def __init__(self, loop: SimLoop, topic: TopicName) -> None:
        self._loop = loop
        self._path = records.topic_path(topic)
        self._started_s = 0.0
        self._lines: list[str] = []
        self._topic: TopicRecord | None = None
        self._subscriptions: dict[str, SubscriptionRecord] = {}
        self._owners: dict[int, StoreRecord] = {}

    def begin(self) -> None:
        """Start the trace of a command; times count from here."""
        self._started_s = self._loop.time()

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def note(self, text: str) -> None:
        # Half seconds, because random pauses between attempts shift an event by a tenth or two.
        halves = int(2 * (self._loop.time() - self._started_s))
        self._lines.append(f"  {halves / 2:4.1f} s  {text}")

    @property
    def layout(self) -> Layout:
        assert self._topic is not None, "no topic yet; create it first"
        return layout_of(self._topic)

    @property
    def leader(self) -> int | None:
        """The broker that owns the topic's home store."""
        assert self._topic is not None, "no topic yet; create it first"
        return self._owners[self._topic.store].owner

    def bucket_of(self, segment_id: int, key: str) -> int:
        splits = self.layout.segments[segment_id].bucket_splits
        return bucket_index(splits, bucket_hash(key_hash(key)))

    # The metadata tree.

    def changed(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """Note a change of a stored value; None means that it was removed."""
        if after is None:
            if path.startswith(f"{records.BROKERS}/"):
                self.note(f"the lease of broker {_last(path)} ends")
        elif path == self._path:
            self._topic_changed(records.decode(TopicRecord, after))
        elif path.startswith(f"{self._path}/subscriptions/"):
            self._subscription_changed(_last(path), records.decode(SubscriptionRecord, after))
        elif path.startswith(f"{records.STORES}/"):
            self._store_changed(int(_last(path)), records.decode(StoreRecord, after))

    def _store_changed(self, store: int, record: StoreRecord) -> None:
        before, self._owners[store] = self._owners.get(store), record
        if before is None or before.owner != record.owner:
            owner = "no broker" if record.owner is None else f"broker {record.owner}"
            self.note(f"{owner} owns store {store} (term {record.term})")

    def _topic_changed(self, record: TopicRecord) -> None:
        before, self._topic = self._topic, record
        if before is None or before.term != record.term:
            self.note(f"broker {self.leader} leads the topic (term {record.term})")
        if record.intent is not None and (before is None or before.intent is None):
            self.note(f"the leader stores its intent: {_intent(record.intent)}")
        if before is None or before.epoch != record.epoch:
            layout = layout_of(record)
            self.note(f"layout {layout.epoch} is stored:")
            for segment in layout.segments.values():
                self._lines.append(f"            {_segment(segment, record.segments[segment.id].store)}")

    def _subscription_changed(self, name: str, record: SubscriptionRecord) -> None:
        before = self._subscriptions.get(name)
        self._subscriptions[name] = record
        if before is None:
            self.note(f"subscription {name} is registered")
            before = SubscriptionRecord(type=record.type)
        for segment in sorted({*record.drained} - {*before.drained}):
            self.note(f"{name}: segment {segment} is drained")
        for segment, parts in record.partly_drained.items():
            if parts != before.partly_drained.get(segment):
                slots = ", ".join(f"{part.start:04x}-{part.end:04x}" for part in parts)
                self.note(f"{name}: segment {segment} is drained in slots {slots}")
        for consumer in sorted({*before.consumers} - {*record.consumers}):
            self.note(f"{name}: consumer {consumer} is no longer a member")

    # The wire.

    def registered(self, member: RegistrationSeen, assignment: pb.ScalableConsumerAssignment) -> None:
        self.note(f"consumer {member.name} registers and is assigned {self._assigned_parts(assignment)}")

    def assigned(self, member: RegistrationSeen, assignment: pb.ScalableConsumerAssignment) -> None:
        self.note(f"consumer {member.name} is assigned {self._assigned_parts(assignment)}")

    def _assigned_parts(self, assignment: pb.ScalableConsumerAssignment) -> str:
        parts = []
        for segment in sorted(assignment.segments, key=lambda one: one.segment_id):
            splits = self.layout.segments[segment.segment_id].bucket_splits
            buckets = [
                number
                for slots in segment.bucket_ranges
                for number in range(bucket_index(splits, slots.start), bucket_index(splits, slots.end) + 1)
            ]
            which = f"buckets {_listed(buckets)}" if segment.bucket_ranges else "whole"
            parts.append(f"segment {segment.segment_id} ({which})")
        return f"{', '.join(parts) or 'nothing'} in generation {assignment.generation}"

    def leaving(self, member: RegistrationSeen) -> None:
        self.note(f"consumer {member.name} leaves")

    def registration_lost(self, member: RegistrationSeen) -> None:
        self.note(f"consumer {member.name} loses its registration")

    def attached(self, consumer: AttachSeen) -> None:
        self.note(f"consumer {consumer.name} attaches to segment {consumer.segment}")

    def detached(self, consumer: AttachSeen) -> None:
        self.note(f"consumer {consumer.name} detaches from segment {consumer.segment}")

    def layout_sent(self, watch: Watch, epoch: int) -> None:
        if epoch > max(watch.known, watch.sent):
            self.note(f"{watch.client} receives layout {epoch}")

    def peer_called(self, broker: SimProcess | None, peer: str, call: pb.CommandPeerCall) -> None:
        task = PEER_CALLS.get((call.target.split()[0], call.verb))
        if broker is not None and task is not None:
            segment = _find_segment(msgspec.msgpack.decode(call.arguments))
            self.note(f"{_name(peer)} asks {_name(broker.name)} to {task.format(segment)}")


def _name(host: str) -> str:
    return host.replace("-", " ")


def _find_segment(arguments: object) -> int | None:
    """Return the id of the first segment that the arguments of a call name."""
    if isinstance(arguments, dict) and "segment" in arguments:
        return int(arguments["segment"]["id"])
    parts = arguments.values() if isinstance(arguments, dict) else arguments
    if not isinstance(parts, Iterable) or isinstance(parts, str | bytes):
        return None
    return next((found for part in parts if (found := _find_segment(part)) is not None), None)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _listed(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def _intent(intent: IntentRecord) -> str:
    parents = [parent for step in intent.steps for parent in step.parent_ids]
    children = range(intent.first_id, intent.first_id + len(intent.child_names))
    return f"{intent.kind} {_listed(parents)} into {_listed(children)}" if parents else intent.kind


def _segment(segment: Segment, store: int) -> str:
    state = "active" if segment.active else "sealed"
    parents = f", child of {_listed(segment.parents)}" if segment.parents else ""
    where = f"{segment.range.start:04x}-{segment.range.end:04x}"
    buckets = "1 bucket" if segment.bucket_count == 1 else f"{segment.bucket_count} buckets"
    return f"segment {segment.id} {where} {state}, {buckets}, store {store}{parents}"
