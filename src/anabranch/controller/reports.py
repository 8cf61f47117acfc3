"""A topic's state in words and numbers, for operators.

Reads what the controller knows and asks segments for the rest; changes nothing.
"""

from __future__ import annotations

from anabranch.controller.jobs import together
from anabranch.controller.leading import Leading
from anabranch.controller.segments import Place, SegmentLoad
from anabranch.controller.subscriptions import Subscriptions
from anabranch.errors import AnabranchError
from anabranch.metadata.records import SubscriptionRecord
from anabranch.model.layout import Segment
from anabranch.model.names import TopicName


async def topic_stats(lead: Leading, subscriptions: Subscriptions) -> dict[str, object]:
    """Rates and sizes of each segment, backlog and consumers of each subscription.

    A segment whose owner does not answer has no numbers and adds none.
    """
    layout = lead.layout
    segments = [layout.segments[id_] for id_ in sorted(layout.segments)]
    places = [lead.place(segment) for segment in segments]
    loads = await together(_load(lead, place) for place in places)
    return {
        "epoch": layout.epoch,
        "totalSegments": len(segments),
        "activeSegments": len(layout.active),
        "sealedSegments": len(layout.sealed),
        "segments": {
            str(segment.id): _segment(segment, place.name, load)
            for segment, place, load in zip(segments, places, loads, strict=True)
        },
        "subscriptions": {
            sub: await _subscription(lead, sub, record, places)
            for sub, record in sorted(subscriptions.records.items())
        },
    }


async def _load(lead: Leading, place: Place) -> SegmentLoad | None:
    try:
        return await lead.world.segments.load(place)
    except AnabranchError:
        return None


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
        about |= {
            "msgRateIn": load.msg_rate_in,
            "bytesRateIn": load.bytes_rate_in,
            "msgRateOut": load.msg_rate_out,
            "bytesRateOut": load.bytes_rate_out,
            "backlogMessages": load.backlog_messages,
            "storageSize": load.size_bytes,
        }
    return about


async def _subscription(
    lead: Leading, sub: str, record: SubscriptionRecord, places: list[Place]
) -> dict[str, object]:
    async def backlog(place: Place) -> int:
        try:
            return await lead.world.segments.backlog(place, sub) or 0
        except AnabranchError:
            return 0

    return {
        "type": record.type,
        "consumerCount": len(record.consumers),
        "backlog": sum(await together(backlog(place) for place in places)),
        "generation": record.generation,
        "drained": list(record.drained),
    }
