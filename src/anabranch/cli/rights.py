"""`anabranch tenant`, `anabranch namespace` and `anabranch permissions`: commands over the admin API."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping

from anabranch.admin.client import AdminClient
from anabranch.cli.role import role_of
from anabranch.errors import InvalidNameError
from anabranch.model.names import TopicName, parse_namespace


def run(arguments: argparse.Namespace) -> int:
    with role_of(arguments, os.environ).open_admin() as admin:
        for line in _ACTIONS[arguments.action](admin, arguments):
            print(line)
    return 0


def resource_of(text: str) -> str | TopicName:
    """The namespace or the topic that an operator names; raises InvalidNameError."""
    if "://" not in text:
        return "/".join(parse_namespace(text))
    name = TopicName.parse(text)
    if name.domain not in ("topic", "persistent"):
        raise InvalidNameError(f"rights are granted on topic:// and persistent:// topics, not on {name}")
    return name


def _list_tenants(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    return admin.tenants()


def _create_tenant(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.create_tenant(arguments.tenant, arguments.admin)
    return [f"created tenant {arguments.tenant}, {_admins(arguments.admin)}"]


def _set_admins(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.set_tenant_admins(arguments.tenant, arguments.admin)
    return [f"tenant {arguments.tenant}: {_admins(arguments.admin)}"]


def _show_tenant(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    return [f"tenant {arguments.tenant}: {_admins(admin.tenant_admins(arguments.tenant))}"]


def _delete_tenant(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.delete_tenant(arguments.tenant)
    return [f"deleted tenant {arguments.tenant}"]


def _admins(roles: Iterable[str]) -> str:
    return f"admins {', '.join(roles) or 'none'}"


def _list_namespaces(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    return admin.namespaces(arguments.tenant)


def _create_namespace(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.create_namespace(arguments.namespace)
    return [f"created namespace {arguments.namespace}"]


def _delete_namespace(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.delete_namespace(arguments.namespace, force=arguments.force)
    return [f"deleted namespace {arguments.namespace}"]


def _show(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    resource = resource_of(arguments.resource)
    yield from _lines(admin.permissions(resource))
    if isinstance(resource, str):
        reserved = admin.subscription_roles(resource)
        yield from (f"subscription {line}" for line in _lines(reserved))


def _lines(found: Mapping[str, Iterable[str]]) -> Iterable[str]:
    return (f"{name}: {', '.join(given) or 'nothing'}" for name, given in found.items())


def _grant(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.grant(resource_of(arguments.resource), arguments.role, arguments.actions)
    return [f"{arguments.role} may {' and '.join(arguments.actions)} on {arguments.resource}"]


def _revoke(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.revoke(resource_of(arguments.resource), arguments.role)
    return [f"revoked the rights of {arguments.role} on {arguments.resource}"]


def _reserve(admin: AdminClient, arguments: argparse.Namespace) -> Iterable[str]:
    admin.reserve_subscription(arguments.namespace, arguments.subscription, arguments.roles)
    roles = ", ".join(arguments.roles) or "all roles that may consume"
    return [f"subscription {arguments.subscription} is for {roles}"]


_ACTIONS: Mapping[str, Callable[[AdminClient, argparse.Namespace], Iterable[str]]] = {
    "tenant list": _list_tenants,
    "tenant create": _create_tenant,
    "tenant admins": _set_admins,
    "tenant show": _show_tenant,
    "tenant delete": _delete_tenant,
    "namespace list": _list_namespaces,
    "namespace create": _create_namespace,
    "namespace delete": _delete_namespace,
    "permissions show": _show,
    "permissions grant": _grant,
    "permissions revoke": _revoke,
    "permissions reserve": _reserve,
}
