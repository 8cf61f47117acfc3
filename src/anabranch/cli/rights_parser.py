"""The options of the commands for tenants, namespaces and permissions. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from typing import Any

from anabranch.cli.topic_parser import Commands, add_admin_options


def add_tenant(commands: Commands) -> None:
    actions = _actions(commands, "tenant", "create, list, show and delete tenants, and name their admins")
    _action(actions, "tenant list", "list all tenants")
    for action, about in (
        ("create", "create a tenant"),
        ("admins", "make these roles, and no others, the admins of a tenant"),
    ):
        made = _action(actions, f"tenant {action}", about)
        made.add_argument("tenant")
        made.add_argument(
            "--admin", action="append", default=[], metavar="ROLE", help="a role; may be repeated"
        )
    for action, about in (("show", "show the admins of a tenant"), ("delete", "delete an empty tenant")):
        _action(actions, f"tenant {action}", about).add_argument("tenant")


def add_namespace(commands: Commands) -> None:
    actions = _actions(commands, "namespace", "create, list and delete namespaces")
    _action(actions, "namespace list", "list the namespaces of a tenant").add_argument("tenant")
    _action(actions, "namespace create", "create a namespace").add_argument(
        "namespace", help="tenant/namespace"
    )
    delete = _action(actions, "namespace delete", "delete a namespace without topics")
    delete.add_argument("namespace", help="tenant/namespace")
    delete.add_argument("--force", action="store_true", help="delete all its topics too")


def add_permissions(commands: Commands) -> None:
    actions = _actions(commands, "permissions", "show, grant and revoke the rights of roles")
    show = _action(actions, "permissions show", "show the rights that were granted")
    grant = _action(actions, "permissions grant", "grant a role these rights, and no others")
    revoke = _action(actions, "permissions revoke", "revoke all rights of a role")
    for made in (show, grant, revoke):
        made.add_argument(
            "resource", help="tenant/namespace, or topic://tenant/namespace/name, or persistent://..."
        )
    for made in (grant, revoke):
        made.add_argument("role")
    grant.add_argument("actions", nargs="+", metavar="ACTION", help="produce, consume")
    reserve = _action(
        actions, "permissions reserve", "let only these roles use a subscription of a namespace"
    )
    reserve.add_argument("namespace", help="tenant/namespace")
    reserve.add_argument("subscription")
    reserve.add_argument("roles", nargs="*", metavar="ROLE", help="without any: all roles that may consume")


def _actions(commands: Commands, name: str, about: str) -> Any:
    parser = commands.add_parser(name, help=about)
    return parser.add_subparsers(title="actions", metavar="ACTION", required=True)


def _action(actions: Any, name: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(
        name.split()[1], help=about, description=about[0].upper() + about[1:] + "."
    )
    add_admin_options(made)
    made.set_defaults(run=_run, action=name)
    return made


def _run(arguments: argparse.Namespace) -> int:
    from anabranch.cli import rights

    return rights.run(arguments)
