"""The options of `anabranch doctor`. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli.topic_parser import Commands


def add_doctor(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="name the weak points of a configuration, its files and a running broker",
        description="Look at a configuration, the files it names, the data directory, this machine and, with "
        "--url, a running broker. Each weak point comes with its reason and the remedy. Exit code 0 without "
        "weak points, 1 with some; notes do not count. Changes nothing.",
    )
    parser.add_argument("--config", metavar="FILE", help="the file of `anabranch serve --config`")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="as for `anabranch serve`"
    )
    parser.add_argument("--data", metavar="DIR", help="data directory (the one of the configuration)")
    parser.add_argument("--url", metavar="URL", help="also ask a running broker, http://host:port")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from anabranch.cli import doctor

    return doctor.run(arguments)
