"""`anabranch permissions ...`: the rights of roles, over the admin API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated

from cyclopts import Parameter

from anabranch.cli.answers import tell
from anabranch.cli.options import ADMIN, AdminOptions, Namespace, Subscription, command_group
from anabranch.cli.role import role_of
from anabranch.errors import InvalidNameError
from anabranch.model.names import TopicName, parse_namespace

app = command_group("permissions", "Show, grant and revoke the rights of roles.", help_epilogue="")

Resource = Annotated[
    str, Parameter(help="tenant/namespace, or topic://tenant/namespace/name, or persistent://...")
]
Role = Annotated[str, Parameter(help="name of the role")]


def resource_of(text: str) -> str | TopicName:
    """The namespace or the topic that an operator names; raises InvalidNameError."""
    if "://" not in text:
        return "/".join(parse_namespace(text))
    name = TopicName.parse(text)
    if name.domain not in ("topic", "persistent"):
        raise InvalidNameError(f"rights are granted on topic:// and persistent:// topics, not on {name}")
    return name


@app.command
def show(resource: Resource, /, *, at: AdminOptions = ADMIN) -> int:
    """Show the rights that were granted."""
    on = resource_of(resource)
    with role_of(at, os.environ).open_admin() as admin:
        granted = admin.permissions(on)
        reserved = admin.subscription_roles(on) if isinstance(on, str) else {}
    lines = [*_lines(granted), *(f"subscription {line}" for line in _lines(reserved))]
    return tell({"roles": granted, "subscriptions": reserved}, *lines, as_json=at.as_json)


def _lines(found: Mapping[str, Iterable[str]]) -> Iterable[str]:
    return (f"{name}: {', '.join(given) or 'nothing'}" for name, given in found.items())


@app.command
def grant(
    resource: Resource,
    role: Role,
    first: Annotated[str, Parameter(name="ACTION", help="produce, consume")],
    /,
    *others: Annotated[str, Parameter(name="ACTION", show=False)],
    at: AdminOptions = ADMIN,
) -> int:
    """Grant a role these rights, and no others."""
    actions = [first, *others]
    with role_of(at, os.environ).open_admin() as admin:
        admin.grant(resource_of(resource), role, actions)
    text = f"{role} may {' and '.join(actions)} on {resource}"
    return tell({"resource": resource, "role": role, "actions": actions}, text, as_json=at.as_json)


@app.command
def revoke(resource: Resource, role: Role, /, *, at: AdminOptions = ADMIN) -> int:
    """Revoke all rights of a role."""
    with role_of(at, os.environ).open_admin() as admin:
        admin.revoke(resource_of(resource), role)
    text = f"revoked the rights of {role} on {resource}"
    return tell({"resource": resource, "role": role, "actions": []}, text, as_json=at.as_json)


@app.command
def reserve(
    namespace: Namespace,
    subscription: Subscription,
    /,
    *roles: Annotated[str, Parameter(name="ROLE", help="without any: all roles that may consume")],
    at: AdminOptions = ADMIN,
) -> int:
    """Let only these roles use a subscription of a namespace."""
    with role_of(at, os.environ).open_admin() as admin:
        admin.reserve_subscription(namespace, subscription, roles)
    text = f"subscription {subscription} is for {', '.join(roles) or 'all roles that may consume'}"
    return tell({"subscription": subscription, "roles": list(roles)}, text, as_json=at.as_json)
