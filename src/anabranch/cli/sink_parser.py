"""The options of `anabranch sink ...`. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from typing import Any

from anabranch.cli.topic_parser import add_admin_options

Commands = Any
"""argparse gives its sub-parsers no public type."""

ABOUT = """\
An exactly-once sink of Spark keeps two logs beside its topic, which say what is written. docs/spark.md
explains how they are used. `clean` removes those of batch jobs without a sinkId, to which no job returns;
the logs of a stream, or of a sinkId, stay until you remove them.
"""

EPILOG = """\
examples:
  anabranch sink list                              the sinks whose logs are in public/default
  anabranch sink clean --older-than-hours 48       remove the logs of batch jobs that ended two days ago
  anabranch sink remove --checkpoint /jobs/copy    remove the logs of a stream whose checkpoint was deleted
  anabranch sink remove nightly --yes              remove the logs of a sinkId that no job uses any more
"""


def add_sink(commands: Commands) -> None:
    parser = commands.add_parser(
        "sink",
        help="list, clean and remove the logs of Spark's exactly-once sinks",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _action(actions, "list", "list the sinks of a namespace, and why each one stays")
    clean = _action(actions, "clean", "remove the logs of batch jobs without a sinkId that have ended")
    clean.add_argument(
        "--older-than-hours",
        type=float,
        default=24.0,
        metavar="H",
        help="keep logs that were used later than this; longer than any job takes (24)",
    )
    remove = _action(actions, "remove", "remove the logs of one sink, once no query or job will return to it")
    remove.add_argument("id", nargs="?", help="the id of the sink, as `anabranch sink list` shows it")
    remove.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="the sink of the stream with this checkpointLocation, now deleted",
    )
    remove.add_argument(
        "--yes", action="store_true", help="no query and no job will use this sink again; needed for an id"
    )


def _action(actions: Commands, name: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(
        name, help=about, description=about[0].upper() + about[1:] + "."
    )
    made.add_argument("--namespace", default="public/default", help="tenant/namespace (public/default)")
    add_admin_options(made)
    made.set_defaults(run=_run, action=name)
    return made


def _run(arguments: argparse.Namespace) -> int:
    from anabranch.cli import sink

    return sink.run(arguments)
