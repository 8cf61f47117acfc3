"""Properties, expiry and analysis of the subscriptions of classic topics, with Pulsar's paths."""

from __future__ import annotations

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.topics import BacklogAnalysis, CursorPosition
from anabranch.admin.routes.topics.topics import (
    SUBSCRIPTION,
    TOPIC,
    Start,
    classic_places,
    place_in,
    subscribed_places,
)
from anabranch.errors import InvalidConfigurationError, NotAllowedError
from anabranch.model.names import Place
from anabranch.rights.rows import CLASSIC_ADMIN, CLASSIC_SUBSCRIPTION

Properties = dict[str, str]


async def show_properties(call: Call) -> Properties:
    """The properties of a subscription; those of all partitions together."""
    places, name, _ = await subscribed_places(call)
    shown: Properties = {}
    for place in places:
        shown.update(await call.logs.properties(place, name))
    return shown


async def set_properties(call: Call) -> None:
    """Replace the properties of a subscription."""
    given = await call.body(Properties)
    places, name, _ = await subscribed_places(call)
    for place in places:
        await call.logs.set_properties(place, name, given or {})


async def expire(call: Call) -> None:
    """Acknowledge the messages of a subscription that are older than this many seconds."""
    before_ms = _before_ms(call)
    places, name, _ = await subscribed_places(call)
    for place in places:
        await call.logs.expire(place, name, before_ms)


async def expire_all(call: Call) -> None:
    """Acknowledge the messages older than this many seconds for every subscription of a topic."""
    before_ms = _before_ms(call)
    for place in await classic_places(call):
        await call.logs.expire_all(place, before_ms)


async def expire_up_to(call: Call) -> None:
    """Acknowledge the messages of a subscription up to a message id."""
    last = await place_in(call)
    if last is None:
        raise InvalidConfigurationError("the body must be a message id: the last message to expire")
    place, name = await _only_place(call)
    await call.logs.expire_up_to(place, name, last)


async def analyze_backlog(call: Call) -> BacklogAnalysis:
    """Count the entries and messages of a backlog, from a message id on if the body has one."""
    start = await place_in(call)
    place, name = await _only_place(call)
    return await call.logs.analyze(place, name, start)


def _before_ms(call: Call) -> int:
    return call.broker.clock.wall_ms() - call.number_part("seconds", least=0) * 1000


async def _only_place(call: Call) -> tuple[Place, str]:
    """Return the place and the name of a subscription of a topic without partitions."""
    if len(await classic_places(call)) > 1:
        raise NotAllowedError(f"{call.classic()} is partitioned; name the partition of the message id")
    (place,), name, _ = await subscribed_places(call)
    return place, name


ENDPOINTS = [
    AdminEndpoint("GET", SUBSCRIPTION + "/properties", CLASSIC_SUBSCRIPTION, show_properties),
    AdminEndpoint("PUT", SUBSCRIPTION + "/properties", CLASSIC_SUBSCRIPTION, set_properties, body=Properties),
    AdminEndpoint("POST", SUBSCRIPTION + "/expireMessages/{seconds}", CLASSIC_SUBSCRIPTION, expire),
    AdminEndpoint("POST", SUBSCRIPTION + "/expireMessages", CLASSIC_SUBSCRIPTION, expire_up_to, body=Start),
    AdminEndpoint("POST", TOPIC + "/all_subscription/expireMessages/{seconds}", CLASSIC_ADMIN, expire_all),
    AdminEndpoint(
        "POST", SUBSCRIPTION + "/analyzeBacklog", CLASSIC_SUBSCRIPTION, analyze_backlog, body=CursorPosition
    ),
]
