"""Sentences and rows of `anabranch lane`. Pure: the JSON of the admin API in, text out."""

from __future__ import annotations

from typing import Any

Lane = dict[str, Any]

HOT_SHARE = 0.1
"""Part of the traffic of a segment from which on `topic why` names a key."""

UNITS = ("B", "kB", "MB", "GB", "TB")


def lane_row(lane: Lane, now_s: float) -> tuple[str, ...]:
    """One line of `anabranch lane list`."""
    return (
        lane["lane"],
        sample_key(lane),
        lane["reason"],
        "?" if lane["heldEntries"] is None else f"{lane['heldEntries']:,}",
        "?" if lane["heldBytes"] is None else size_text(lane["heldBytes"]),
        age_text(max(now_s - lane["sinceMs"] / 1000, 0)),
        lane["waitsFor"] or "-",
        lane["note"],
    )


def _held(lane: Lane) -> str:
    if lane["heldEntries"] is None:
        return "entries not counted before a consumer comes"
    return f"{lane['heldEntries']:,} entries, {size_text(lane['heldBytes'])}"


def sample_key(lane: Lane) -> str:
    """A key of the lane, or a dash."""
    return "-" if lane["sampleKey"] is None else str(lane["sampleKey"])


def lane_lines(lane: Lane, now_s: float) -> list[str]:
    """One lane in sentences, with the step that ends its wait."""
    lines = [
        f"lane {lane['lane']} of {lane['log']}",
        f"  reason:         {lane['reason']}" + (f" ({lane['note']})" if lane["note"] else ""),
        f"  sample key:     {sample_key(lane)}",
        f"  held:           {_held(lane)}",
        f"  waits since:    {age_text(max(now_s - lane['sinceMs'] / 1000, 0))}",
    ]
    if lane.get("trafficShare"):
        lines.append(f"  traffic:        {lane['trafficShare']:.0%} of the log")
    if lane.get("hashRange"):
        lines.append(f"  bucket hashes:  {lane['hashRange']}")
    if lane.get("firstMessageId"):
        lines.append(f"  first message:  {lane['firstMessageId']}")
    if lane["waitsFor"]:
        lines.append(f"  waits for:      {lane['waitsFor']}")
    if lane["untilMs"]:
        lines.append(f"  goes on in:     {age_text(max(lane['untilMs'] / 1000 - now_s, 0))}")
    return [*lines, f"  what to do:     {ADVICE.get(lane['reason'], 'wait')}"]


def hot_key_lines(hot_keys: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The keys with a large part of the traffic of their segment, by the id of the segment."""
    return [
        f"segment {segment}: key {key['key']} has {key['trafficShare']:.0%} of the traffic"
        for segment, keys in hot_keys.items()
        for key in keys
        if key["trafficShare"] >= HOT_SHARE
    ]


def lane_text(lane: Lane, now_s: float) -> str:
    """Return one lane as one line, for `topic why`."""
    age = age_text(max(now_s - lane["sinceMs"] / 1000, 0))
    consumer = f", waits for {lane['waitsFor']}" if lane["waitsFor"] else ""
    note = f" ({lane['note']})" if lane["note"] else ""
    share = f" with {lane['trafficShare']:.0%} of the traffic" if lane.get("trafficShare") else ""
    name = f"lane {lane['lane']}, key {sample_key(lane)}{share}"
    return f"{name}: {_held(lane)}, for {age}, {lane['reason']}{note}{consumer}"


ADVICE = {
    "no consumer": "start a consumer; the key's hash or bucket has none",
    "busy": "the consumer takes no more messages: find out what it does, or add consumers",
    "unacknowledged": "the consumer does not acknowledge: find out why, or restart it",
    "handover": "the former consumer still has to acknowledge messages of the key, or to leave",
    "closed": "nothing: the bucket opens when its older segments are drained",
    "retry": "nothing: the key is retried after its pause; `lane release` retries it at once",
    "delayed": "nothing: the message has a later delivery time",
    "parked": "repair the cause, then `lane release`; `lane skip --count 1` passes the failing message first",
}
"""The step that ends the wait of a lane, by its reason."""


def payload_text(message: Lane) -> str:
    """The beginning of the payload of a peeked message."""
    if "unreadable" in message:
        return f"({message['unreadable']})"
    payload: str | None = message["payload"]
    if payload is None:
        return "(null)"
    return payload + ("..." if len(payload.encode()) < message["sizeBytes"] else "")


def size_text(size: float) -> str:
    """Bytes for people: 1.5 MB."""
    at = 0
    while size >= 1000 and at < len(UNITS) - 1:
        size, at = size / 1000, at + 1
    return f"{size:.0f} {UNITS[at]}" if size >= 10 or at == 0 else f"{size:.1f} {UNITS[at]}"


def age_text(seconds: float) -> str:
    """A time for people: 12 s, 5 min, 3 h, 2 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
