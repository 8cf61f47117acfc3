"""A topic's state in words and numbers, for operators.

Reads the controller's records and asks the owners of segments for rates and backlogs; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.aio import together
from anabranch.controller.decide import groups
from anabranch.controller.decide.waiting import waiting
from anabranch.controller.ports.segments import SegmentLoad
from anabranch.controller.topic.announcements import Announcements
from anabranch.controller.topic.leadership import Leadership
from anabranch.controller.topic.members import Members
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.errors import AnabranchError
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName

SUMMED = {
    "msgRateIn": "msg_rate_in",
    "bytesRateIn": "bytes_rate_in",
    "msgRateOut": "msg_rate_out",
    "bytesRateOut": "bytes_rate_out",
    "backlogMessages": "backlog_messages",
    "storageSize": "size_bytes",
}
"""Figures of a segment; the topic's figures are their sums."""


async def topic_stats(
    lead: Leadership,
    records: Mapping[str, SubscriptionRecord],
    described: Mapping[str, Mapping[str, object]],
) -> dict[str, object]:
    """Rates and sizes of each segment, backlog and consumers of each subscription.

    `described` has the state of each subscription. A segment whose owner does not answer has no figures.
    """
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
    by_segment = {
        str(segment.id): messages
        for segment, messages in zip(segments, found, strict=True)
        if messages is not None
    }
    return {
        "consumerCount": len(record.consumers),
        "backlog": sum(by_segment.values()),
        "backlogBySegment": by_segment,
    }


def subscriptions(
    layout: Layout, subscriptions: Subscriptions, announcements: Announcements, members: Members
) -> dict[str, dict[str, object]]:
    """Each subscription: its progress, its troubles, its members."""
    return {
        sub: {
            **_progress(record, layout),
            "trouble": subscriptions.troubles.get(sub),
            "unreached": announcements.unreached(sub),
            "consumers": _consumers(record, members, sub),
        }
        for sub, record in sorted(subscriptions.records.items())
    }


def _progress(record: SubscriptionRecord, layout: Layout) -> dict[str, object]:
    """The progress of a subscription by its record, and the segments that it waits for."""
    waits = waiting(record, layout)
    parts = groups.drained_parts(record)
    return {
        "type": record.type,
        "initialPosition": record.initial_position,
        "generation": record.generation,
        "drained": list(record.drained),
        "partlyDrained": {str(id_): [str(part) for part in slots] for id_, slots in parts.items()},
        "waiting": {
            str(id_): [
                {
                    "segment": blocker.segment_id,
                    "buckets": [str(part) for part in blocker.buckets],
                    "consumers": list(blocker.consumers),
                }
                for blocker in blockers
            ]
            for id_, blockers in waits.items()
        },
        "unfinished": None if record.unfinished is None else record.unfinished.kind,
    }


def _consumers(record: SubscriptionRecord, members: Members, sub: str) -> dict[str, object]:
    """The members of a group, and the segments that each reads by the record."""
    held = {
        name: [given.segment_id for given in member.segments] for name, member in record.consumers.items()
    }
    return {
        hold.name: {
            "connected": hold.connected,
            "evictedInSeconds": members.seconds_left(hold),
            "segments": held.get(hold.name, []),
        }
        for hold in members.of(sub)
    }
