"""`anabranch lane ...`: the lanes of stuck keys, over the admin API."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.cli.role import role_of
from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import TopicName

Lane = dict[str, Any]

HOT_SHARE = 0.1
"""Part of the traffic of a segment from which on `topic why` names a key."""

UNITS = ("B", "kB", "MB", "GB", "TB")


def run(arguments: argparse.Namespace) -> int:
    name = TopicName.parse(arguments.topic, default_domain="topic")
    with role_of(arguments, os.environ).open_admin() as admin:
        return _ACTIONS[arguments.action](admin, name, arguments)


def _list(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> int:
    lanes = plain(admin.lanes(name, arguments.subscription))
    if arguments.json:
        print(json.dumps(lanes, indent=2))
        return 0
    if not lanes:
        print(f"{name}: no key of subscription {arguments.subscription} waits in a lane")
        return 0
    head = ("lane", "key", "reason", "held", "size", "age", "waits for", "note")
    _print_table(head, [_row(lane) for lane in lanes], right=("held", "size", "age"))
    return 0


def _row(lane: Lane) -> tuple[str, ...]:
    return (
        lane["lane"],
        _key(lane),
        lane["reason"],
        "?" if lane["heldEntries"] is None else f"{lane['heldEntries']:,}",
        "?" if lane["heldBytes"] is None else size_text(lane["heldBytes"]),
        _age(lane),
        lane["waitsFor"] or "-",
        lane["note"],
    )


def _held(lane: Lane) -> str:
    if lane["heldEntries"] is None:
        return "entries not counted before a consumer comes"
    return f"{lane['heldEntries']:,} entries, {size_text(lane['heldBytes'])}"


def _key(lane: Lane) -> str:
    return "-" if lane["sampleKey"] is None else str(lane["sampleKey"])


def _age(lane: Lane) -> str:
    return age_text(max(time.time() - lane["sinceMs"] / 1000, 0))


def _show(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> int:
    lane = plain(admin.lane(name, arguments.subscription, arguments.slot))
    if arguments.json:
        print(json.dumps(lane, indent=2))
        return 0
    for line in lane_lines(lane, time.time()):
        print(line)
    return 0


def lane_lines(lane: Lane, now_s: float) -> list[str]:
    """One lane in sentences, with the step that ends its wait."""
    lines = [
        f"lane {lane['lane']} of {lane['log']}",
        f"  reason:         {lane['reason']}" + (f" ({lane['note']})" if lane["note"] else ""),
        f"  sample key:     {_key(lane)}",
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
    """One lane as one line, for `topic why`."""
    age = age_text(max(now_s - lane["sinceMs"] / 1000, 0))
    consumer = f", waits for {lane['waitsFor']}" if lane["waitsFor"] else ""
    note = f" ({lane['note']})" if lane["note"] else ""
    share = f" with {lane['trafficShare']:.0%} of the traffic" if lane.get("trafficShare") else ""
    name = f"lane {lane['lane']}, key {_key(lane)}{share}"
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


def _peek(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> int:
    messages = plain(admin.peek_lane(name, arguments.subscription, arguments.slot, _count(arguments) or 10))
    if arguments.json:
        print(json.dumps(messages, indent=2))
        return 0
    head = ("message", "key", "size", "properties", "payload")
    rows = [
        (
            message["messageId"],
            str(message.get("key", "-")),
            size_text(message["sizeBytes"] if "sizeBytes" in message else message["entryBytes"]),
            ", ".join(f"{key}={value}" for key, value in message.get("properties", {}).items()),
            _payload(message),
        )
        for message in messages
    ]
    _print_table(head, rows, right=("size",))
    return 0


def _payload(message: Lane) -> str:
    if "unreadable" in message:
        return f"({message['unreadable']})"
    payload: str | None = message["payload"]
    if payload is None:
        return "(null)"
    return payload + ("..." if len(payload.encode()) < message["sizeBytes"] else "")


def _release(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> int:
    admin.release_lane(name, arguments.subscription, arguments.slot)
    print(f"released lane {arguments.slot}: its messages are delivered in order")
    return 0


def _skip(admin: AdminClient, name: TopicName, arguments: argparse.Namespace) -> int:
    count = _count(arguments)
    if not arguments.yes and not _confirmed(admin, name, arguments, count):
        print("nothing was skipped", file=sys.stderr)
        return 1
    skipped = admin.skip_lane(name, arguments.subscription, arguments.slot, count)
    print(f"skipped {skipped:,} entries of lane {arguments.slot}")
    return 0


def _count(arguments: argparse.Namespace) -> int | None:
    count: int | None = arguments.count
    if count is not None and count < 1:
        raise InvalidConfigurationError(f"--count {count}: write a number from 1 on")
    return count


def _confirmed(admin: AdminClient, name: TopicName, arguments: argparse.Namespace, count: int | None) -> bool:
    lane = plain(admin.lane(name, arguments.subscription, arguments.slot))
    held = lane["heldEntries"] or 0
    number = held if count is None else min(count, held)
    if not sys.stdin.isatty():
        raise InvalidConfigurationError(
            f"{number:,} entries of lane {arguments.slot} would be skipped for good; confirm it with --yes"
        )
    question = f"Skip {number:,} of {held:,} entries of lane {arguments.slot} (key {_key(lane)}) for good?"
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in table.columns:
        column.justify = "right" if column.header in right else "left"
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


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


_ACTIONS: dict[str, Callable[[AdminClient, TopicName, argparse.Namespace], int]] = {
    "list": _list,
    "peek": _peek,
    "release": _release,
    "show": _show,
    "skip": _skip,
}
