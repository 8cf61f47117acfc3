"""The lanes of one log in JSON, made by the broker that owns the log.

The messages of a lane are read for the answer and stay where they are. Until the first consumer comes after a
start, only the note of the cursor names lanes, and their sizes are not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from anabranch.broker.browsing.noted_lanes import lane_in_note, lanes_in_note, release_in_note
from anabranch.broker.dispatch.lanes import LaneView
from anabranch.broker.serving.lanes.lane_totals import lane_totals
from anabranch.broker.serving.lanes.subscription_lanes import SubscriptionLanes
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.acknowledging import backlog_of
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.errors import AnabranchError, ConflictError, NotFoundError
from anabranch.ledger.storage import Entry
from anabranch.model.hashing import bucket_hash, bucket_index, bucket_ranges
from anabranch.protocol.entry.columns import Columns
from anabranch.protocol.entry.entries import checked_metadata, decode_columns
from anabranch.protocol.entry.outer import decoded_key

Json = dict[str, Any]

PEEKED_MAX: Final = 1000
"""Most messages of one peek."""

PEEKED_BYTES_MAX: Final = 4 * 2**20
"""Bytes of entries that one peek reads, beyond the first."""

SHOWN_BYTES: Final = 200
"""Bytes of a payload that a peek shows."""

SKIP_ENTRIES: Final = 5000
"""Entries that are skipped at once, in a few milliseconds."""

HEAVIEST: Final = 32
"""Keys with most of the traffic that are compared with the slot of a lane."""

SAMPLES: Final = 20
"""Lanes of one list whose first entry is read for a sample of their keys."""


async def list_lanes(log: ServedLog, subscription: Subscription, limit: int) -> list[Json]:
    """Return the largest lanes of a subscription; the first ones have a sample key."""
    lanes = subscription.reading.lanes
    if lanes is None:
        return lanes_in_note(subscription.cursor.note, limit)
    views = list(lanes.listed())[:limit]
    keys = await _sample_keys(subscription, views[:SAMPLES])
    return [_shown(log, subscription, lanes, view, keys.get(view.slot)) for view in views]


async def show_lane(log: ServedLog, subscription: Subscription, slot: int) -> Json:
    if (
        subscription.reading.lanes is None
        and (noted := lane_in_note(subscription.cursor.note, slot)) is not None
    ):
        return noted
    lanes, view = find_lane(subscription, slot)
    keys = await _sample_keys(subscription, [view])
    return _shown(log, subscription, lanes, view, keys.get(slot))


def find_lane(subscription: Subscription, slot: int) -> tuple[SubscriptionLanes, LaneView]:
    """Return the lane of a slot.

    Raises NotFoundError if nothing waits there, and ConflictError if only the cursor's note knows the lane.
    """
    lanes = subscription.reading.lanes
    view = None if lanes is None else lanes.view(slot)
    if lanes is None and lane_in_note(subscription.cursor.note, slot) is not None:
        raise ConflictError(
            f"lane {slot} is known from before the start of the broker; connect a consumer of "
            f"subscription {subscription.name}, which lets the broker find its messages"
        )
    if lanes is None or view is None:
        raise NotFoundError(f"subscription {subscription.name} has no lane {slot}; list its lanes")
    return lanes, view


def lane_figures(subscription: Subscription) -> dict[str, int]:
    """Return the lanes of a subscription in numbers; figures of several logs can be added up."""
    totals = lane_totals(subscription.reading.lanes)
    return {
        "lanes": totals.lanes,
        "laneEntries": totals.entries,
        "laneMessages": backlog_of(subscription.log, subscription.cursor, totals).in_lanes,
        "laneBytes": totals.size_bytes,
        "spilledBytes": subscription.backing.spilled_bytes,
    }


async def hot_spots(log: ServedLog, limit: int) -> Json:
    """Return the keys with most of the traffic of a log, and by subscription its largest lanes."""
    keys = [{"key": one.shown_key, "trafficShare": one.share} for one in log.hottest(limit)]
    lanes = {
        name: found
        for name, subscription in list(log.subscriptions.items())
        if (found := await list_lanes(log, subscription, limit))
    }
    return {"keys": keys, "lanes": lanes}


def _share(log: ServedLog, lanes: SubscriptionLanes, slot: int) -> float | None:
    """Return the share of the traffic of the heaviest keys of a slot; None if it has no heavy key."""
    boundaries = lanes.boundaries
    shares = [
        hot.share
        for hot in log.hottest(HEAVIEST)
        if (
            slot == (bucket_hash(hot.hash) or 1)
            if boundaries is None
            else slot == bucket_index(boundaries, bucket_hash(hot.hash))
        )
    ]
    return sum(shares) if shares else None


def _shown(
    log: ServedLog, subscription: Subscription, lanes: SubscriptionLanes, view: LaneView, key: str | None
) -> Json:
    """Return one lane as JSON; `hashRange` has the hashes of a bucket."""
    shown: Json = {
        "slot": view.slot,
        "reason": str(view.reason),
        "sinceMs": view.since_ms,
        "untilMs": view.until_ms,
        "heldEntries": view.entries,
        "heldBytes": view.size_bytes,
        "waitsFor": view.waits_for,
        "note": view.note,
        "sampleKey": key,
        "trafficShare": _share(log, lanes, view.slot),
    }
    if lanes.boundaries is not None:
        shown["hashRange"] = str(bucket_ranges(lanes.boundaries)[view.slot])
    if view.first_ordinal >= 0:
        position = subscription.backing.log.extent.position_of(view.first_ordinal)
        shown["firstMessageId"] = f"{position.ledger}:{position.entry}"
    return shown


async def _sample_keys(subscription: Subscription, views: Sequence[LaneView]) -> dict[int, str | None]:
    """Return the key of the first message of each lane, if it can be read."""
    slots = {view.first_ordinal: view.slot for view in views if view.first_ordinal >= 0}
    found: dict[int, str | None] = {}
    try:
        for entry in await subscription.backing.log.read_each(sorted(slots), PEEKED_BYTES_MAX):
            found[slots[entry.ordinal]] = _first_key(entry.data)
    except AnabranchError:
        # A lane is shown without its key if the entry is damaged or trimmed.
        pass
    return found


def _first_key(data: bytes) -> str | None:
    """Return the key of an entry, or of its first message; None if it has none or cannot be read."""
    try:
        metadata, _ = checked_metadata(data)
        if metadata.HasField("partition_key"):
            key: str | bytes = metadata.partition_key
            if metadata.partition_key_b64_encoded:
                key = decoded_key(metadata.partition_key)
            return key if isinstance(key, str) else _text(key)
        columns = decode_columns(data, PEEKED_BYTES_MAX)
        return _text(columns.keys[0]) if columns.count else None
    except AnabranchError:
        return None


async def peek_lane(subscription: Subscription, slot: int, count: int, bytes_max: int) -> list[Json]:
    """Return the first messages that wait in a lane; none of them counts as delivered."""
    lanes, _ = find_lane(subscription, slot)
    count = min(count, PEEKED_MAX)
    ordinals = lanes.ordinals(slot, count)
    entries = await subscription.backing.log.read_each(ordinals, PEEKED_BYTES_MAX)
    found: list[Json] = []
    for entry in entries:
        if len(found) >= count:
            break
        found += _messages(subscription, entry, bytes_max)
    return found[:count]


def _messages(subscription: Subscription, entry: Entry, bytes_max: int) -> Iterator[Json]:
    """Yield the messages of an entry that are not acknowledged; an entry that cannot be opened says why."""
    about = {
        "messageId": f"{entry.position.ledger}:{entry.position.entry}",
        "publishTimeMs": entry.timestamp_ms,
        "entryBytes": len(entry.data),
    }
    try:
        columns = decode_columns(entry.data, bytes_max)
    except AnabranchError as error:
        yield {**about, "unreadable": str(error)}
        return
    remaining = subscription.cursor.acks.remaining(entry.ordinal)
    for at in range(columns.count):
        batch_index = columns.batch_indexes[at]
        if remaining is None or remaining >> max(batch_index, 0) & 1:
            yield {**about, "producer": columns.producer_name, **_message(columns, at, about["messageId"])}


def _message(columns: Columns, at: int, entry_id: object) -> Json:
    value = columns.values[at]
    batch_index = columns.batch_indexes[at]
    shown: Json = {
        "key": _text(columns.keys[at]),
        "properties": columns.properties[at] if columns.properties is not None else {},
        "sizeBytes": 0 if value is None else len(value),
        "payload": None if value is None else _text(value[:SHOWN_BYTES]),
    }
    if batch_index >= 0:
        shown["messageId"] = f"{entry_id}:{batch_index}"
    return shown


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


async def release_lane(subscription: Subscription, slot: int) -> None:
    """Let a parked or paused slot go on; ConflictError if it waits for another reason."""
    if subscription.reading.lanes is None and release_in_note(subscription.cursor, slot):
        await subscription.cursor.flush()
        return
    lanes, view = find_lane(subscription, slot)
    if not lanes.release(slot):
        raise ConflictError(
            f"lane {slot} is not parked or paused: {view.reason}"
            + (f", it waits for {view.waits_for}" if view.waits_for else "")
            + "; only its consumer, or a skip, ends that"
        )
    subscription.schedule()
    await subscription.cursor.flush()


async def skip_lane(subscription: Subscription, slot: int, count: int | None) -> int:
    """Acknowledge the first entries of a lane, or all of them; returns how many."""
    lanes, view = find_lane(subscription, slot)
    left, skipped = view.entries if count is None else count, 0
    while left > skipped and subscription.reading.lanes is lanes:
        some = lanes.skip(slot, min(left - skipped, SKIP_ENTRIES))
        if not some:
            break
        skipped += some
        await asyncio.sleep(0)
    subscription.schedule()
    subscription.check_end()
    await subscription.cursor.flush()
    return skipped
