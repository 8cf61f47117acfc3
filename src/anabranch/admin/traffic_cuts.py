"""Cuts of a segment, or of its buckets, into parts of similar load, for admin calls that ask for them."""

from __future__ import annotations

from anabranch.admin.calls import Call
from anabranch.controller.decide.operation import segment_name
from anabranch.errors import ConflictError
from anabranch.metadata.layouts import layout_of
from anabranch.model.layout import Segment
from anabranch.model.names import Place
from anabranch.model.scaling.traffic_sketch import TrafficSummary
from anabranch.model.scaling.weights import balanced_bucket_splits, balanced_points


async def split_points(call: Call, id_: int, parts: int) -> tuple[int, ...]:
    """First slots of the parts after the first; raises ConflictError while the traffic is not known."""
    segment, traffic = await _traffic(call, id_)
    return balanced_points(segment.range, traffic.ring_weights(segment.range), parts)


async def bucket_splits(call: Call, id_: int, buckets: int) -> tuple[int, ...]:
    """First hashes of the buckets after the first; raises ConflictError while the traffic is not known."""
    _, traffic = await _traffic(call, id_)
    return balanced_bucket_splits(traffic.bucket_weights(), buckets)


async def _traffic(call: Call, id_: int) -> tuple[Segment, TrafficSummary]:
    segment = layout_of(await call.record()).segment(id_)
    place = Place(segment_name(call.topic("topic"), segment), segment.store)
    load = await call.broker.controllers.context.segments.load(place)
    if not load.traffic.ring:
        raise ConflictError(
            f"the traffic of segment {id_} is not known: too few messages came lately; "
            "publish more, or leave byTraffic out"
        )
    return segment, load.traffic
