"""Places in a log as bodies of admin calls: message ids, and the words "earliest" and "latest"."""

from __future__ import annotations

import msgspec

from anabranch.broker.browsing import stats
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.errors import InvalidConfigurationError
from anabranch.ledger.storage import EntryPlaces
from anabranch.model.ids import Position
from anabranch.model.limits import check_properties
from anabranch.model.reports.logs import MessageIdBody


def last_id(segment: ServedLog) -> MessageIdBody:
    """Return the id of the last message of a log."""
    last = stats.position_before(segment.log, segment.log.extent.next_ordinal)
    return stats.message_id(last, segment.partition)


def id_at_time(segment: ServedLog, timestamp_ms: int) -> MessageIdBody:
    """Return the id of the first message published at or after a time, else that of the last message."""
    extent = segment.log.extent
    ordinal = extent.ordinal_at_time(timestamp_ms)
    if ordinal >= extent.next_ordinal:
        return last_id(segment)
    return stats.message_id(extent.position_of(ordinal), segment.partition)


def ordinal_from(places: EntryPlaces, start: object) -> int:
    """Return the ordinal of "earliest", "latest", None (latest) or a message id in a body."""
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
    return _inside(places, start, _is_excluded(start)) or (ordinal_from(places, start), None)


def aim_after(places: EntryPlaces, last: object) -> tuple[int, int | None]:
    """As `aim_from`, for the place behind a message id; for the id itself if it is excluded."""
    if not isinstance(last, dict) or not isinstance(last.get("entryId"), int):
        return ordinal_from(places, last), None
    if inside := _inside(places, last, not _is_excluded(last)):
        return inside
    after = last["entryId"] + (not _is_excluded(last))
    return ordinal_from(places, {"ledgerId": last.get("ledgerId"), "entryId": after}), None


def _inside(places: EntryPlaces, place: object, behind: bool) -> tuple[int, int] | None:
    """Return the batch of a message id, and its messages from the id on, or after it; None if all count."""
    index = place.get("batchIndex") if isinstance(place, dict) else None
    if not isinstance(place, dict) or not isinstance(index, int) or index < 0:
        return None
    entry = ordinal_from(places, {"ledgerId": place.get("ledgerId"), "entryId": place.get("entryId")})
    count, passed = places.count_of(entry), index + behind
    is_there = places.position_of(entry) == (place["ledgerId"], place["entryId"])
    return (entry, (1 << count) - (1 << passed)) if is_there and 0 < passed < count else None


async def subscribe_from(segment: ServedLog, subscription: str, start: object) -> None:
    """Create a durable subscription at `start`, with the properties in a body that names a message id."""
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


def _is_excluded(place: object) -> bool:
    # Java's admin client drops the verb from the name of the field.
    return isinstance(place, dict) and bool(place.get("isExcluded") or place.get("excluded"))
