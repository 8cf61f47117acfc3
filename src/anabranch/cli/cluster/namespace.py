"""`anabranch namespace ...`: namespaces, over the admin API."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

from cyclopts import Parameter

from anabranch.admin.models.body import plain
from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Namespace, Yes, command_group
from anabranch.cli.role import role_of

app = command_group("namespace", "Create, list, show and delete namespaces.", help_epilogue="")


@app.command(name="list")
def list_namespaces(
    tenant: Annotated[str, Parameter(help="name of the tenant (public)")] = "public",
    /,
    *,
    at: AdminOptions = ADMIN,
) -> int:
    """List the namespaces of a tenant."""
    with role_of(at, os.environ).open_admin() as admin:
        found = admin.namespaces(tenant)
    return tell(found, *found, as_json=at.as_json)


@app.command
def create(namespace: Namespace, /, *, at: AdminOptions = ADMIN) -> int:
    """Create a namespace."""
    with role_of(at, os.environ).open_admin() as admin:
        admin.create_namespace(namespace)
    return tell({"namespace": namespace}, f"created namespace {namespace}", as_json=at.as_json)


@app.command
def show(namespace: Namespace, /, *, at: AdminOptions = ADMIN) -> int:
    """Show the policies of a namespace that are set."""
    with role_of(at, os.environ).open_admin() as admin:
        whole: dict[str, Any] = plain(admin.namespace_policies(namespace))
    found = {name: value for name, value in whole.items() if value not in (None, {}, [])}
    lines = [f"{name}: {json.dumps(value)}" for name, value in found.items()]
    return tell(found, *lines or [f"{namespace} has no policies"], as_json=at.as_json)


@app.command
def delete(
    namespace: Namespace,
    /,
    *,
    force: Annotated[bool, Parameter(help="delete all its topics too")] = False,
    yes: Yes = False,
    at: AdminOptions = ADMIN,
) -> int:
    """Delete a namespace without topics."""
    if not confirmed(f"delete namespace {namespace}{' with all its topics' if force else ''}", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        admin.delete_namespace(namespace, force=force)
    return tell({"deleted": namespace}, f"deleted namespace {namespace}", as_json=at.as_json)
