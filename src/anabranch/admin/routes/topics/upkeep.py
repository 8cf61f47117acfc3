"""Compaction and trimming of topics, and unloading of topics and namespaces, with Pulsar's paths."""

from __future__ import annotations

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.namespaces import Bundles
from anabranch.admin.models.topics import CompactionStatus
from anabranch.admin.routes.topics.topics import TOPIC, classic_places
from anabranch.aio import together
from anabranch.controller.decide.operation import segment_name
from anabranch.errors import NotFoundError
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.topics import ClassicDomain
from anabranch.model.names import Place
from anabranch.rights.rows import ADMIN, CLASSIC_ADMIN, SCALABLE_ADMIN

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
BUNDLE = "0x00000000_0xffffffff"
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


async def trim(call: Call) -> None:
    """Drop the old messages of a topic that every subscription has acknowledged, by whole ledgers."""
    await together(call.logs.trim(place) for place in await classic_places(call))


async def truncate(call: Call) -> None:
    """Drop all messages of a topic, acknowledged or not, by whole ledgers."""
    await together(call.logs.truncate(place) for place in await classic_places(call))


async def unload(call: Call) -> None:
    """Disconnect all clients of a topic; they open it again."""
    await together(call.logs.unload(place) for place in await classic_places(call))


async def unload_scalable(call: Call) -> None:
    """Disconnect all clients of the segments of a topic; they open them again."""
    layout, name = layout_of(await call.record()), call.topic("topic")
    segments = layout.segments.values()
    await together(call.logs.unload(Place(segment_name(name, one), one.store)) for one in segments)


async def unload_namespace(call: Call) -> None:
    """Disconnect all clients of all topics of a namespace; they open them again."""
    namespace = call.namespace()
    await call.topics.namespaces.load_namespace(namespace)
    places: set[Place] = set()
    domains: tuple[ClassicDomain, ...] = ("persistent", "non-persistent")
    for domain in domains:
        for name in await call.broker.classic.list(namespace, domain):
            places.add(Place(name, await call.broker.classic.store_of(name)))
    for name, record in await call.topics.load_all(namespace):
        segments = layout_of(record).segments.values()
        places.update(Place(segment_name(name, one), one.store) for one in segments)
    for place in places:
        await call.logs.unload(place)


async def unload_bundle(call: Call) -> None:
    """Unload a namespace by its one bundle."""
    check_bundle(call)
    await unload_namespace(call)


def check_bundle(call: Call) -> None:
    """NotFoundError unless the path names the one bundle of a namespace."""
    bundle = call.part("bundle")
    if bundle != BUNDLE:
        raise NotFoundError(f"there is no bundle {bundle!r}; a namespace has one, {BUNDLE}")


async def bundles(call: Call) -> Bundles:
    """The one bundle of a namespace: topics are spread over brokers one by one."""
    await call.topics.namespaces.load_namespace(call.namespace())
    return Bundles()


ENDPOINTS = [
    AdminEndpoint("PUT", NAMESPACE + "/unload", ADMIN, unload_namespace),
    AdminEndpoint("PUT", NAMESPACE + "/{bundle}/unload", ADMIN, unload_bundle),
    AdminEndpoint("GET", NAMESPACE + "/bundles", ADMIN, bundles),
    AdminEndpoint("PUT", TOPIC + "/compaction", CLASSIC_ADMIN, compact),
    AdminEndpoint("GET", TOPIC + "/compaction", CLASSIC_ADMIN, compaction_status),
    AdminEndpoint("POST", TOPIC + "/trim", CLASSIC_ADMIN, trim),
    AdminEndpoint("DELETE", TOPIC + "/truncate", CLASSIC_ADMIN, truncate),
    AdminEndpoint("PUT", TOPIC + "/unload", CLASSIC_ADMIN, unload),
    AdminEndpoint("PUT", SCALABLE + "/unload", SCALABLE_ADMIN, unload_scalable),
]
