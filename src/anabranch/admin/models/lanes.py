"""Bodies about lanes: the messages of one key, or of one bucket, that wait."""

from __future__ import annotations

from anabranch.admin.models.body import Body


class LaneInfo(Body, frozen=True, kw_only=True):
    """One lane; its sizes are None until the first consumer comes after a start of the broker."""

    lane: str = ""
    log: str = ""
    slot: int = 0
    reason: str = ""
    since_ms: int = 0
    until_ms: int | None = None
    held_entries: int | None = None
    held_bytes: int | None = None
    waits_for: str = ""
    note: str = ""
    sample_key: str | None = None
    traffic_share: float | None = None
    hash_range: str | None = None
    first_message_id: str | None = None


class LaneMessage(Body, frozen=True, kw_only=True, omit_defaults=True):
    """One message that waits in a lane; `unreadable` says why an entry cannot be opened."""

    message_id: str = ""
    publish_time_ms: int = 0
    entry_bytes: int = 0
    producer: str | None = None
    key: str | None = None
    properties: dict[str, str] = {}
    size_bytes: int | None = None
    payload: str | None = None
    unreadable: str | None = None


class SkippedEntries(Body, frozen=True, kw_only=True):
    """How many entries of a lane were acknowledged."""

    skipped_entries: int = 0
