"""Describes a topic's state in words and numbers, for operators. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.aio import together
from anabranch.controller.decide import groups
from anabranch.controller.decide.checkpoint_groups import holds
from anabranch.controller.ports.segments import SegmentLoad
from anabranch.controller.topic.announcements import Announcements
from anabranch.controller.topic.leadership import Leadership
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.errors import AnabranchError
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.assignment import bucket_owners
from anabranch.model.drains import Ranges, covers, intersection, union
from anabranch.model.hashing import bucket_ranges
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName
from anabranch.model.scaling.traffic_sketch import HotHash

SUMMED = {
    "msgRateIn": "msg_rate_in",
    "bytesRateIn": "bytes_rate_in",
    "msgRateOut": "msg_rate_out",
    "bytesRateOut": "bytes_rate_out",
    "backlogMessages": "backlog_messages",
    "storageSize": "size_bytes",
}
"""Figures of a segment. The topic's figures are their sums."""


async def topic_stats(
    lead: Leadership, records: Mapping[str, SubscriptionRecord], described: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    """Return figures of each segment whose owner answers, and of each subscription besides `described`."""
    layout = lead.layout
    segments = [layout.segments[id_] for id_ in sorted(layout.segments)]
    loads = await together(lead.load(segment) for segment in segments)
    known = [load for load in loads if load is not None]
    return {
        "epoch": layout.epoch,
        **{shown: sum(getattr(load, name) for load in known) for shown, name in SUMMED.items()},
        "totalSegments": len(segments),
        "activeSegments": len(layout.active),
        "sealedSegments": len(layout.sealed),
        "segments": {
            str(segment.id): _segment(segment, lead.segment_name(segment), load)
            for segment, load in zip(segments, loads, strict=True)
        },
        "subscriptions": {
            sub: {**described[sub], **await _subscription(lead, sub, record, segments)}
            for sub, record in sorted(records.items())
            if sub in described
        },
    }


async def segment_troubles(lead: Leadership) -> dict[str, str]:
    """Return the problems that owners report by segment, such as unreadable entries or a full disk."""
    segments = [lead.layout.segments[id_] for id_ in sorted(lead.layout.segments)]
    loads = await together(lead.load(segment) for segment in segments)
    return {
        f"segment {segment.id}": "; ".join(load.troubles)
        for segment, load in zip(segments, loads, strict=True)
        if load is not None and load.troubles
    }


def _hottest(hot: Iterable[HotHash]) -> list[dict[str, object]]:
    return [
        {
            "hash": f"{one.hash:08x}",
            "bucketHash": one.hash & 0xFFFF,
            "share": round(one.share, 4),
            "sampleKey": one.shown_key,
        }
        for one in hot
    ]


def _segment(segment: Segment, name: TopicName, load: SegmentLoad | None) -> dict[str, object]:
    about: dict[str, object] = {
        "name": str(name),
        "state": str(segment.state),
        "hashRange": str(segment.range),
        "parentIds": list(segment.parents),
        "childIds": list(segment.children),
        "bucketCount": segment.bucket_count,
    }
    if load is not None:
        about |= {shown: getattr(load, name) for shown, name in SUMMED.items()}
        about["troubles"] = list(load.troubles)
        about["hottest"] = _hottest(load.traffic.hot)
    return about


async def _subscription(
    lead: Leadership, sub: str, record: SubscriptionRecord, segments: list[Segment]
) -> dict[str, object]:
    async def backlog(segment: Segment) -> int | None:
        try:
            return await lead.context.segments.backlog(lead.place(segment), sub)
        except AnabranchError:
            return None

    found = await together(backlog(segment) for segment in segments)
    pairs = zip(segments, found, strict=True)
    by_segment = {str(segment.id): messages for segment, messages in pairs if messages is not None}
    return {
        "consumerCount": len(record.consumers),
        "backlog": sum(by_segment.values()),
        "backlogBySegment": by_segment,
    }


def subscriptions(
    layout: Layout, subscriptions: Subscriptions, announcements: Announcements, members: Members
) -> dict[str, dict[str, object]]:
    """Return the progress, troubles and members of each subscription."""
    return {
        sub: {
            "type": record.type,
            "initialPosition": record.initial_position,
            "generation": record.generation,
            "drained": list(record.drained),
            "partlyDrained": {str(id_): _words(part) for id_, part in groups.drained_parts(record).items()},
            "waiting": waiting(record, layout),
            "unfinished": None if record.unfinished is None else record.unfinished.kind,
            "trouble": subscriptions.troubles.get(sub),
            "unreached": announcements.rosters.unreached(sub),
            "consumers": _consumers(record, members, sub),
        }
        for sub, record in sorted(subscriptions.records.items())
    }


def waiting(record: SubscriptionRecord, layout: Layout) -> dict[str, list[dict[str, object]]]:
    """Return each segment that is held back, even in part, with the undrained buckets of its ancestors."""
    drained = groups.finished_by_group(record) if record.type == "CHECKPOINT" else frozenset(record.drained)
    if drained is None or record.type == "QUEUE":
        return {}
    parts = groups.open_parts(record)
    blockers = {
        segment.id: _blocker(record, segment, parts.get(segment.id, ()))
        for segment in layout.sealed
        if segment.id not in drained
    }
    behind = {id_: sorted(layout.ancestors(id_) - drained) for id_ in sorted(layout.segments)}
    return {str(id_): [blockers[ancestor] for ancestor in found] for id_, found in behind.items() if found}


def _blocker(record: SubscriptionRecord, segment: Segment, drained: Ranges) -> dict[str, object]:
    """Return the undrained buckets of a sealed segment, with their readers."""
    readers = sorted(
        name
        for name, consumer in record.consumers.items()
        if any(held.segment_id == segment.id for held in consumer.segments)
    )
    buckets = bucket_ranges(segment.bucket_splits)
    behind = [at for at, bucket in enumerate(buckets) if not covers(drained, bucket)]
    left = union(buckets[at] for at in behind)
    owners = bucket_owners(len(buckets), readers)
    consumers = sorted({owners[at] for at in behind if owners})
    if record.type == "CHECKPOINT":
        consumers = sorted(
            name
            for name, consumer in record.consumers.items()
            if intersection(holds(consumer).get(segment.id, ()), left)
        )
    return {"segment": segment.id, "buckets": _words(left), "consumers": consumers}


def _words(ranges: Ranges) -> list[str]:
    return [str(part) for part in ranges]


def _consumers(record: SubscriptionRecord, members: Members, sub: str) -> dict[str, object]:
    held = {name: [given.segment_id for given in known.segments] for name, known in record.consumers.items()}
    return {
        hold.name: {
            "connected": hold.connected,
            "evictedInSeconds": members.seconds_left(hold),
            "segments": held.get(hold.name, []),
        }
        for hold in members.holds.all(sub)
    }
