"""A layout on the wire, with the brokers that serve its segments."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.broker.cluster.directory import Directory
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import TopicName
from anabranch.model.ranges import initial_ranges
from anabranch.protocol.pb import pulsar_pb2 as pb


class Owners(NamedTuple):
    """The brokers that serve one topic."""

    leader: str | None
    segments: tuple[tuple[int, str], ...]
    """Id and broker address of each segment that a broker serves."""


def owners_of(layout: Layout, home: int | None, directory: Directory) -> Owners:
    """The brokers of a layout's segments, and the leader: the owner of the store `home`."""
    urls = {store: owner.url for store in directory.stores if (owner := directory.owner_of(store))}
    segments = (layout.segments[id_] for id_ in sorted(layout.segments))
    served = tuple((segment.id, urls[segment.store]) for segment in segments if segment.store in urls)
    return Owners(None if home is None else urls.get(home), served)


def dag_of(layout: Layout, owners: Owners) -> pb.ScalableTopicDAG:
    """Encode a layout and its owners."""
    return pb.ScalableTopicDAG(
        epoch=layout.epoch,
        segments=[_segment(layout.segments[id_]) for id_ in sorted(layout.segments)],
        segment_brokers=[
            pb.SegmentBrokerAddress(segment_id=id_, broker_url=url) for id_, url in owners.segments
        ],
        controller_broker_url=owners.leader,
    )


def synthetic_dag(name: TopicName, partitions: int) -> pb.ScalableTopicDAG:
    """Encode a classic topic as a layout: a segment per partition, routed by number and not by range."""
    topics = [name.partition_name(index) for index in range(partitions)] or [name]
    segments = [
        Segment(index, part, legacy_topic=str(topic))
        for index, (topic, part) in enumerate(zip(topics, initial_ranges(len(topics)), strict=True))
    ]
    return pb.ScalableTopicDAG(epoch=0, segments=[_segment(segment) for segment in segments])


def _segment(segment: Segment) -> pb.SegmentInfoProto:
    sealed = segment.state is SegmentState.SEALED
    return pb.SegmentInfoProto(
        segment_id=segment.id,
        hash_start=segment.range.start,
        hash_end=segment.range.end,
        state=pb.SEALED if sealed else pb.ACTIVE,
        parent_ids=segment.parents,
        child_ids=segment.children,
        created_at_epoch=segment.created_epoch,
        sealed_at_epoch=segment.sealed_epoch if sealed else None,
        created_at_ms=segment.created_ms,
        sealed_at_ms=segment.sealed_ms if sealed else None,
        legacy_topic_name=segment.legacy_topic,
        entry_bucket_splits=segment.bucket_splits,
    )
