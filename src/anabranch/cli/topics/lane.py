"""`anabranch lane ...`: the lanes of stuck keys, over the admin API."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from anabranch.admin.models.body import plain
from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Subscription, Topic, Yes, command_group
from anabranch.cli.role import role_of
from anabranch.cli.topics.classic import topic_of
from anabranch.cli.topics.lane_text import Lane, lane_lines, lane_row, payload_text, sample_key, size_text
from anabranch.errors import InvalidConfigurationError

ABOUT = """\
List, show, peek into, release and skip the lanes of stuck keys.

A lane holds the messages of one key, or of one bucket of keys, that cannot go on: their consumer is busy,
does not acknowledge, or the key is parked. All other keys are delivered meanwhile. docs/hot-keys.md explains
each reason and what to do about it.
"""

EXAMPLES = """\
examples:
  anabranch lane list orders billing             which keys wait, for which consumer, since when
  anabranch lane peek orders billing 0:17        the first messages that wait in lane 17 of segment 0
  anabranch lane release orders billing 0:17     let a parked key go on
  anabranch lane skip orders billing 0:17 --count 1   pass the first message of the lane for good
"""

app = command_group("lane", ABOUT, help_epilogue=EXAMPLES)

Slot = Annotated[
    str,
    Parameter(help="the lane, as `anabranch lane list` names it: SEGMENT:SLOT, PARTITION:SLOT or SLOT"),
]


@app.command(name="list")
def list_lanes(
    topic: Topic,
    subscription: Subscription,
    /,
    *,
    at: AdminOptions = ADMIN,
) -> int:
    """List the lanes of a subscription, the largest first."""
    name = topic_of(topic)
    with role_of(at, os.environ).open_admin() as admin:
        lanes = plain(admin.lanes(name, subscription))
    if at.as_json or not lanes:
        return tell(
            lanes, f"{name}: no key of subscription {subscription} waits in a lane", as_json=at.as_json
        )
    head = ("lane", "key", "reason", "held", "size", "age", "waits for", "note")
    _print_table(head, [lane_row(lane, time.time()) for lane in lanes], right=("held", "size", "age"))
    return 0


@app.command
def show(
    topic: Topic,
    subscription: Subscription,
    slot: Slot,
    /,
    *,
    at: AdminOptions = ADMIN,
) -> int:
    """Show one lane: its reason, its age, its size, and the consumer it waits for."""
    with role_of(at, os.environ).open_admin() as admin:
        lane = plain(admin.lane(topic_of(topic), subscription, slot))
    return tell(lane, *lane_lines(lane, time.time()), as_json=at.as_json)


@app.command
def peek(
    topic: Topic,
    subscription: Subscription,
    slot: Slot,
    /,
    *,
    count: Annotated[int, Parameter(metavar="N", help="how many messages (10)")] = 10,
    at: AdminOptions = ADMIN,
) -> int:
    """Print the first messages that wait in a lane; they stay there."""
    _check(count)
    with role_of(at, os.environ).open_admin() as admin:
        messages = plain(admin.peek_lane(topic_of(topic), subscription, slot, count))
    if at.as_json:
        return tell(messages, as_json=True)
    head = ("message", "key", "size", "properties", "payload")
    _print_table(head, [_message_row(message) for message in messages], right=("size",))
    return 0


def _message_row(message: Lane) -> tuple[str, ...]:
    return (
        message["messageId"],
        str(message.get("key", "-")),
        size_text(message["sizeBytes"] if "sizeBytes" in message else message["entryBytes"]),
        ", ".join(f"{key}={value}" for key, value in message.get("properties", {}).items()),
        payload_text(message),
    )


@app.command
def release(
    topic: Topic,
    subscription: Subscription,
    slot: Slot,
    /,
    *,
    at: AdminOptions = ADMIN,
) -> int:
    """Let a parked or paused lane go on: its messages are delivered in order."""
    with role_of(at, os.environ).open_admin() as admin:
        admin.release_lane(topic_of(topic), subscription, slot)
    text = f"released lane {slot}: its messages are delivered in order"
    return tell({"released": slot}, text, as_json=at.as_json)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SkipPlan:
    """How much of a lane is skipped, and whether to ask."""

    count: Annotated[
        int | None, Parameter(metavar="N", help="only the first N entries (all of the lane)")
    ] = None
    yes: Yes = False


SKIP_PLAN: Final = SkipPlan()


@app.command
def skip(
    topic: Topic,
    subscription: Subscription,
    slot: Slot,
    /,
    *,
    plan: SkipPlan = SKIP_PLAN,
    at: AdminOptions = ADMIN,
) -> int:
    """Acknowledge messages of a lane, so that no consumer receives them."""
    _check(plan.count)
    name = topic_of(topic)
    with role_of(at, os.environ).open_admin() as admin:
        if not plan.yes:
            lane = plain(admin.lane(name, subscription, slot))
            held = lane["heldEntries"] or 0
            number = held if plan.count is None else min(plan.count, held)
            what = f"skip {number:,} of {held:,} entries of lane {slot} (key {sample_key(lane)})"
            if not confirmed(what, yes=False):
                return 1
        skipped = admin.skip_lane(name, subscription, slot, plan.count)
    return tell({"skipped": skipped}, f"skipped {skipped:,} entries of lane {slot}", as_json=at.as_json)


def _check(count: int | None) -> None:
    if count is not None and count < 1:
        raise InvalidConfigurationError(f"--count {count}: write a number from 1 on")


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
