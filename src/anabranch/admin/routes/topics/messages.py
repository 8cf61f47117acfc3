"""`/admin/v2/persistent`: single messages of classic topics, read without consuming them."""

from __future__ import annotations

from starlette.responses import Response

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.topics import MessageIdBody
from anabranch.admin.routes.topics.topics import SUBSCRIPTION, TOPIC, classic_places, subscribed_places
from anabranch.broker.browsing.stored_messages import PEEKED_MAX, EntryBody, payload_of
from anabranch.errors import InvalidConfigurationError, NotAllowedError
from anabranch.rights.rows import CLASSIC_READ, CLASSIC_SUBSCRIPTION

_STARTS = ("earliest", "latest")


async def message_by_id(call: Call) -> Response:
    """The payload of the entry with an id, its metadata in headers."""
    (only,) = await classic_places(call, partitions=False)
    found = await call.logs.entry(only, call.number_part("ledger"), call.number_part("entry"))
    return _answer(call, found)


async def peek(call: Call) -> Response:
    """The payload of an entry in the backlog of a subscription, counted from 1 on; it stays there."""
    places, subscription, _ = await subscribed_places(call)
    if len(places) > 1:
        raise NotAllowedError("the topic has partitions; peek at one of them")
    found = await call.logs.pending_entry(places[0], subscription, _counted(call.number_part("position")))
    return _answer(call, found)


async def examine(call: Call) -> Response:
    """The payload of an entry, counted from the first or from the last one."""
    start = call.query("initialPosition") or "latest"
    if start not in _STARTS:
        raise InvalidConfigurationError(f"initialPosition must be one of {', '.join(_STARTS)}, not {start!r}")
    number = call.number("messagePosition")
    (only,) = await classic_places(call, partitions=False)
    wanted = _counted(1 if number is None else number)
    return _answer(call, await call.logs.counted_entry(only, wanted, from_end=start == "latest"))


async def message_id_at(call: Call) -> MessageIdBody:
    """The id of the first message published at or after a time, or of the last one before it."""
    (only,) = await classic_places(call, partitions=False)
    return await call.logs.id_at_time(only, call.number_part("timestamp"))


def _counted(number: int) -> int:
    if not 1 <= number <= PEEKED_MAX:
        raise InvalidConfigurationError(f"messages are counted from 1 to {PEEKED_MAX}, not {number}")
    return number


def _answer(call: Call, found: EntryBody) -> Response:
    headers, payload = payload_of(found, call.broker.config.max_message_bytes)
    return Response(payload, headers=headers, media_type="application/octet-stream")


ENDPOINTS = [
    AdminEndpoint(
        "GET",
        TOPIC + "/ledger/{ledger}/entry/{entry}",
        CLASSIC_READ,
        message_by_id,
        returns=bytes,
        client="message",
    ),
    AdminEndpoint(
        "GET", SUBSCRIPTION + "/position/{position}", CLASSIC_SUBSCRIPTION, peek, returns=bytes, client="peek"
    ),
    AdminEndpoint(
        "GET",
        TOPIC + "/examinemessage",
        CLASSIC_READ,
        examine,
        returns=bytes,
        query={"initialPosition": str, "messagePosition": int},
    ),
    AdminEndpoint(
        "GET", TOPIC + "/messageid/{timestamp}", CLASSIC_READ, message_id_at, client="message_id_at"
    ),
]
