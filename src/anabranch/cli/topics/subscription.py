"""`anabranch subscription ...`: the subscriptions of scalable and classic topics, over the admin API."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Annotated, Literal

from cyclopts import Parameter

from anabranch.admin.models.body import plain
from anabranch.admin.models.topics import SubscriptionFigures
from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Subscription, Topic, Yes, command_group
from anabranch.cli.role import role_of
from anabranch.cli.times import time_of
from anabranch.cli.topics.classic import topic_of
from anabranch.errors import InvalidConfigurationError, SubscriptionNotFoundError, counted

EXAMPLES = """\
examples:
  anabranch subscription list orders                     names, consumers and backlogs
  anabranch subscription create orders billing           a place in the topic, from its beginning on
  anabranch subscription seek orders billing --to 2h     deliver the last two hours again
  anabranch subscription skip orders billing --yes       acknowledge everything that waits
  anabranch subscription delete orders billing --yes     forget the place
"""

app = command_group("subscription", "List, create, move and delete subscriptions.", help_epilogue=EXAMPLES)


@app.command(name="list")
def list_subscriptions(topic: Topic, /, *, at: AdminOptions = ADMIN) -> int:
    """List the subscriptions of a topic, with consumers and backlog."""
    name = topic_of(topic)
    with role_of(at, os.environ).open_admin() as admin:
        found = admin.subscription_figures(name)
    lines = [line_of(subscription, figures) for subscription, figures in found.items()]
    return tell(plain(found), *lines or [f"{name} has no subscriptions"], as_json=at.as_json)


@app.command
def show(topic: Topic, subscription: Subscription, /, *, at: AdminOptions = ADMIN) -> int:
    """Show one subscription: its type, its consumers and its backlog."""
    name = topic_of(topic)
    with role_of(at, os.environ).open_admin() as admin:
        found = admin.subscription_figures(name).get(subscription)
    if found is None:
        raise SubscriptionNotFoundError(f"{name} has no subscription {subscription!r}")
    return tell(plain(found), line_of(subscription, found), as_json=at.as_json)


@app.command
def create(
    topic: Topic,
    subscription: Subscription,
    /,
    *,
    kind: Annotated[
        Literal["stream", "queue"] | None,
        Parameter(name="--type", help="of a scalable topic: stream keeps the order of each key (stream)"),
    ] = None,
    start: Annotated[
        Literal["earliest", "latest"] | None,
        Parameter(name="--from", help="of a classic topic: where it begins (earliest)"),
    ] = None,
    at: AdminOptions = ADMIN,
) -> int:
    """Create a subscription, so that messages are kept for it.

    One of a scalable topic that exists already stays as it is, unless --type gives it another type.
    """
    name = topic_of(topic)
    if (kind if not name.is_scalable else start) is not None:
        raise InvalidConfigurationError("--type is for topic:// topics, --from for persistent:// topics")
    with role_of(at, os.environ).open_admin() as admin:
        if name.is_scalable and kind is None and subscription in admin.subscription_figures(name):
            text = f"{name} has subscription {subscription} already"
        else:
            made = (kind or "stream").upper()
            admin.create_subscription(name, subscription, made, start=start or "earliest")
            text = f"created subscription {subscription} of {name}"
    return tell({"topic": str(name), "subscription": subscription}, text, as_json=at.as_json)


@app.command
def seek(
    topic: Topic,
    subscription: Subscription,
    /,
    *,
    to: Annotated[
        str,
        Parameter(
            metavar="TIME",
            help="go on with the first message published at this time: earliest, 2026-11-16T12:00, or 15m, "
            "2h, 1d ago",
        ),
    ],
    at: AdminOptions = ADMIN,
) -> int:
    """Move a subscription to a time; messages since then are delivered again."""
    name, time_ms = topic_of(topic), time_of(to, time.time())
    with role_of(at, os.environ).open_admin() as admin:
        admin.seek(name, subscription, time_ms)
    when = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    place = f"at {when}" if time_ms else "with the first message"
    return tell({"timeMs": time_ms}, f"subscription {subscription} goes on {place}", as_json=at.as_json)


@app.command
def skip(
    topic: Topic,
    subscription: Subscription,
    /,
    *,
    yes: Yes = False,
    at: AdminOptions = ADMIN,
) -> int:
    """Acknowledge everything that waits, so that no consumer receives it."""
    name = topic_of(topic)
    if not confirmed(f"skip all messages that wait for subscription {subscription} of {name}", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        admin.skip_all(name, subscription)
    return tell({"skipped": subscription}, f"skipped all messages of {subscription}", as_json=at.as_json)


@app.command
def delete(
    topic: Topic,
    subscription: Subscription,
    /,
    *,
    yes: Yes = False,
    at: AdminOptions = ADMIN,
) -> int:
    """Delete a subscription without consumers."""
    name = topic_of(topic)
    if not confirmed(f"delete subscription {subscription} of {name}", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        admin.delete_subscription(name, subscription)
    return tell(
        {"deleted": subscription}, f"deleted subscription {subscription} of {name}", as_json=at.as_json
    )


def line_of(subscription: str, figures: SubscriptionFigures) -> str:
    """One subscription in one line."""
    parts = [subscription]
    if figures.type:
        parts.append(figures.type.lower())
    parts.append(counted(figures.consumers, "consumer"))
    if figures.backlog is not None:
        parts.append(f"backlog {figures.backlog:,}")
    return ", ".join(parts)
