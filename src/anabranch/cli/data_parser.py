"""The options of the commands over data directories. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli.topic_parser import Commands


def add_store(commands: Commands) -> None:
    parser = commands.add_parser("store", help="show, check or repair the data directory of a stopped broker")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    show = _add(actions, "show", "list the stores and logs of a data directory; changes no file")
    check = _add(
        actions,
        "check",
        "read every stored byte and report damage; changes no file, and exits with 1 for damage",
    )
    repair = _add(
        actions,
        "repair",
        "rebuild what can be rebuilt, and report the entries that are lost; take a copy first",
    )
    repair.add_argument(
        "--accept-loss",
        action="store_true",
        help="begin stores anew whose files are gone; their messages are given up",
    )
    for made in (show, check, repair):
        made.add_argument("--json", action="store_true", help="print JSON")


def add_backup(commands: Commands) -> None:
    backup = _add(
        commands, "backup", "copy a data directory consistently, while brokers serve it or after they stopped"
    )
    backup.add_argument(
        "target", metavar="FOLDER", help="folder for the copy; empty, or made by this command"
    )
    restore = _add(
        commands, "restore", "make a data directory from a backup, after verifying every byte of it"
    )
    restore.add_argument("backup", metavar="FOLDER", help="the folder that `anabranch backup` made")


def add_secret(commands: Commands) -> None:
    parser = commands.add_parser("secret", help="rotate the secret between the brokers of a data directory")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    rotate = _add(
        actions,
        "rotate",
        "make a new secret between brokers, while they serve or after they stopped; the old one ends soon",
    )
    rotate.add_argument(
        "--overlap",
        metavar="S",
        type=float,
        default=10.0,
        help="seconds for which the old secret is still accepted (10)",
    )


def _add(actions: Commands, name: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(
        name, help=about.partition(";")[0], description=about[0].upper() + about[1:] + "."
    )
    made.add_argument(
        "--data", metavar="DIR", default="./anabranch-data", help="data directory (./anabranch-data)"
    )
    made.set_defaults(run=_run, action=name)
    return made


def _run(arguments: argparse.Namespace) -> int:
    from anabranch.cli import data

    return data.run(arguments)
