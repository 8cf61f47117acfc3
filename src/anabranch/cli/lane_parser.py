"""The options of `anabranch lane ...`. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from typing import Any

from anabranch.cli.topic_parser import add_admin_options

Commands = Any
"""argparse gives its sub-parsers no public type."""

ABOUT = """\
A lane holds the messages of one key, or of one bucket of keys, that cannot go on: their consumer is busy,
does not acknowledge, or the key is parked. All other keys are delivered meanwhile. docs/hot-keys.md explains
each reason and what to do about it.
"""

EPILOG = """\
examples:
  anabranch lane list orders billing             which keys wait, for which consumer, since when
  anabranch lane peek orders billing 0:17        the first messages that wait in lane 17 of segment 0
  anabranch lane release orders billing 0:17     let a parked key go on
  anabranch lane skip orders billing 0:17 --count 1   pass the first message of the lane for good
"""


def add_lane(commands: Commands) -> None:
    parser = commands.add_parser(
        "lane",
        help="list, show, peek into, release and skip the lanes of stuck keys",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _action(actions, "list", "list the lanes of a subscription, the largest first", names_lane=False)
    _action(actions, "show", "show one lane: its reason, its age, its size, and the consumer it waits for")
    peek = _action(actions, "peek", "print the first messages that wait in a lane; they stay there")
    peek.add_argument("--count", type=int, default=10, metavar="N", help="how many messages (10)")
    _action(actions, "release", "let a parked or paused lane go on: its messages are delivered in order")
    skip = _action(actions, "skip", "acknowledge messages of a lane, so that no consumer receives them")
    skip.add_argument("--count", type=int, metavar="N", help="only the first N entries (all of the lane)")
    skip.add_argument("--yes", action="store_true", help="do not ask; needed without a terminal")


def _action(actions: Commands, name: str, about: str, *, names_lane: bool = True) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(
        name, help=about, description=about[0].upper() + about[1:] + "."
    )
    made.add_argument(
        "topic",
        help="topic://tenant/namespace/name, persistent://tenant/namespace/name, or a bare name of "
        "topic://public/default",
    )
    made.add_argument("subscription", help="the subscription whose consumers are meant")
    if names_lane:
        made.add_argument(
            "slot", help="the lane, as `anabranch lane list` names it: SEGMENT:SLOT, PARTITION:SLOT or SLOT"
        )
    if name in ("list", "show", "peek"):
        made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_admin_options(made)
    made.set_defaults(run=_run, action=name)
    return made


def _run(arguments: argparse.Namespace) -> int:
    from anabranch.cli import lane

    return lane.run(arguments)
