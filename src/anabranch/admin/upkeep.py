"""Compaction and unloading of topics over HTTP, with Pulsar's paths."""

from __future__ import annotations

from anabranch.admin.calls import Call, route
from anabranch.admin.models.topics import CompactionStatus
from anabranch.admin.topics import TOPIC, classic_places
from anabranch.aio import together
from anabranch.controller.decide.operation import segment_name
from anabranch.metadata.layouts import layout_of
from anabranch.model.names import Place

SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"


async def compact(call: Call) -> None:
    """Begin to keep only the latest message of each key for compacted readers."""
    places = await call.once("places", lambda: classic_places(call))
    call.repeatable = False
    await together(call.logs.compact(place) for place in places)


async def compaction_status(call: Call) -> CompactionStatus:
    """The state of the last compaction; that of a topic with partitions is the worst of them."""
    found = await together(call.logs.compaction_status(place) for place in await classic_places(call))
    return min(found, key=lambda one: ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS").index(one.status))


async def unload(call: Call) -> None:
    """Disconnect all clients of a topic, which open it anew."""
    await together(call.logs.unload(place) for place in await classic_places(call))


async def unload_scalable(call: Call) -> None:
    """Disconnect all clients of the segments of a topic, which open them anew."""
    layout, name = layout_of(await call.record()), call.topic("topic")
    segments = layout.segments.values()
    await together(call.logs.unload(Place(segment_name(name, one), one.store)) for one in segments)


ROUTES = [
    route("PUT", TOPIC + "/compaction", compact),
    route("GET", TOPIC + "/compaction", compaction_status),
    route("PUT", TOPIC + "/unload", unload),
    route("PUT", SCALABLE + "/unload", unload_scalable),
]
