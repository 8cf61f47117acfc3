"""The options of the commands over the admin API. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from typing import Any

from anabranch.cli.role_options import add_role_options

Commands = Any
"""argparse gives its sub-parsers no public type."""


def add_topic(commands: Commands) -> None:
    parser = commands.add_parser(
        "topic", help="create, show, split, merge, rebucket, migrate and delete topics"
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_topics(actions)
    _add_layout_changes(actions)


def add_brokers(commands: Commands) -> None:
    about = "list the running brokers and the stores that each of them serves"
    brokers = _action(commands, "brokers", about, names_topic=False)
    brokers.add_argument("--json", action="store_true", help="print a JSON array")


def _action(actions: Commands, name: str, about: str, *, names_topic: bool = True) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(
        name, help=about, description=about[0].upper() + about[1:] + "."
    )
    if names_topic:
        made.add_argument("topic", help="topic://tenant/namespace/name, or a bare name of public/default")
    add_admin_options(made)
    made.set_defaults(run=_run, action=name)
    return made


def add_admin_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that calls the admin API."""
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        help="the broker's HTTP address; or ANABRANCH_ADMIN_URL (http://127.0.0.1:8080)",
    )
    add_role_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    from anabranch.cli import topic

    return topic.run(arguments)


def _add_topics(actions: Commands) -> None:
    create = _action(actions, "create", "create a topic")
    create.add_argument("--segments", type=int, default=1, metavar="N", help="number of segments (1)")
    create.add_argument(
        "--property", action="append", default=[], metavar="KEY=VALUE", help="a property; may be repeated"
    )
    show = _action(actions, "show", "draw a topic's segments")
    show.add_argument("--json", action="store_true", help="print metadata and stats as JSON instead")
    migrate = _action(actions, "migrate", "turn the classic topic of this name into a scalable one")
    migrate.add_argument(
        "--force", action="store_true", help="also when connected clients do not support scalable topics"
    )
    delete = _action(actions, "delete", "delete a topic with everything in it")
    delete.add_argument("--force", action="store_true", help="also while consumers are connected")
    listing = _action(actions, "list", "list the topics of a namespace", names_topic=False)
    listing.add_argument("namespace", nargs="?", default="public/default", help="public/default if left out")
    listing.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="list only topics with this property; may be repeated",
    )
    listing.add_argument("--json", action="store_true", help="print a JSON array")
    why = _action(
        actions,
        "why",
        "explain the operations under way, the waiting segments and the decisions of auto-scaling",
    )
    why.add_argument("--json", action="store_true", help="print all of it as JSON")


def _add_layout_changes(actions: Commands) -> None:
    split = _action(actions, "split", "split one segment, in the middle by default")
    split.add_argument("segment", type=int, help="id of the segment")
    how = split.add_mutually_exclusive_group()
    how.add_argument("--parts", type=int, metavar="N", help="into N equal parts")
    how.add_argument(
        "--points", metavar="SLOT,SLOT", help="at these first slots of the new segments, like 0x4000,0x8000"
    )
    split.add_argument(
        "--by-traffic", action="store_true", help="into parts of similar load, not of equal width"
    )
    merge = _action(actions, "merge", "merge two or more neighbouring segments into one")
    merge.add_argument("segments", type=int, nargs="+", metavar="segment", help="ids of the segments")
    rebucket = _action(
        actions, "rebucket", "replace a segment by one with other buckets, which consumers can share"
    )
    rebucket.add_argument("segment", type=int, help="id of the segment")
    buckets = rebucket.add_mutually_exclusive_group(required=True)
    buckets.add_argument("--buckets", type=int, metavar="N", help="N buckets of equal width")
    buckets.add_argument(
        "--boundaries", metavar="SLOT,SLOT", help="at these first slots of the buckets after the first"
    )
    rebucket.add_argument(
        "--by-traffic",
        action="store_true",
        help="with --buckets: buckets of similar load, not of equal width",
    )
