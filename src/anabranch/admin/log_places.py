"""Places in a log as bodies of admin calls: message ids, and the words "earliest" and "latest"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anabranch.admin import stats
from anabranch.admin.models.topics import MessageIdBody
from anabranch.broker.serving.served_log import ServedLog
from anabranch.errors import InvalidConfigurationError
from anabranch.ledger.storage import EntryPlaces
from anabranch.model.ids import Position
from anabranch.model.limits import check_properties


def last_id(segment: ServedLog) -> MessageIdBody:
    """The id of the last message of a log."""
    last = stats.position_before(segment.log, segment.log.extent.next_ordinal)
    return stats.message_id(last, segment.partition)


def ordinal_from(places: EntryPlaces, start: object) -> int:
    """The ordinal of "earliest", "latest", None (latest) or a message id in a body."""
    if start is None or start == "latest":
        return places.next_ordinal
    if start == "earliest":
        return places.first_ordinal
    if isinstance(start, dict):
        ledger, entry = start.get("ledgerId"), start.get("entryId")
        if isinstance(ledger, int) and isinstance(entry, int):
            ordinal = places.ordinal_of(Position(ledger, entry))
            return min(ordinal + _is_excluded(start), places.next_ordinal)
    raise InvalidConfigurationError(
        'the body must be "earliest", "latest" or {"ledgerId": .., "entryId": ..}'
    )


def aim_from(places: EntryPlaces, start: object) -> tuple[int, int | None]:
    """As `ordinal_from`; inside a batch also the messages of the entry that still count, as bits."""
    index = start.get("batchIndex") if isinstance(start, dict) else None
    if isinstance(start, dict) and isinstance(index, int) and index >= 0:
        entry = ordinal_from(places, {"ledgerId": start.get("ledgerId"), "entryId": start.get("entryId")})
        count, passed = places.count_of(entry), index + _is_excluded(start)
        is_there = places.position_of(entry) == (start["ledgerId"], start["entryId"])
        if is_there and 0 < passed < count:
            return entry, (1 << count) - (1 << passed)
    return ordinal_from(places, start), None


async def subscribe_from(segment: ServedLog, subscription: str, start: object) -> None:
    """Create a durable subscription at `start`, with the properties that a body has beside a message id."""
    (ordinal, left), properties = aim_from(segment.log.extent, start), _properties_of(start)
    is_new = subscription not in segment.subscriptions
    made = await segment.subscription(subscription, durable=True, ordinal=ordinal, properties=properties)
    if is_new and left is not None:
        await made.seek(ordinal, left)


def _properties_of(start: object) -> dict[str, str]:
    given = start.get("properties") if isinstance(start, dict) else None
    try:
        properties = msgspec.convert(given or {}, dict[str, str])
    except msgspec.ValidationError as error:
        raise InvalidConfigurationError(f"properties must be an object of texts: {error}") from error
    check_properties("a subscription", properties)
    return properties


def end_after(places: EntryPlaces, last: object) -> int:
    """As `ordinal_from`; for a message id the ordinal after it, unless the id is excluded."""
    if isinstance(last, dict) and isinstance(last.get("entryId"), int):
        after = last["entryId"] + (not _is_excluded(last))
        return ordinal_from(places, {"ledgerId": last.get("ledgerId"), "entryId": after})
    return ordinal_from(places, last)


def _is_excluded(place: Mapping[str, Any]) -> bool:
    # Java's admin client drops the verb from the name of the field.
    return bool(place.get("isExcluded") or place.get("excluded"))
