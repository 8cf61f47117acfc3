"""`anabranch tenant ...`: tenants and their admins, over the admin API."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Yes, command_group
from anabranch.cli.role import role_of

app = command_group(
    "tenant", "Create, list, show and delete tenants, and name their admins.", help_epilogue=""
)

Tenant = Annotated[str, Parameter(help="name of the tenant")]
Admins = Annotated[tuple[str, ...], Parameter(name="--admin", metavar="ROLE", help="a role; may be repeated")]


@app.command(name="list")
def list_tenants(*, at: AdminOptions = ADMIN) -> int:
    """List all tenants."""
    with role_of(at, os.environ).open_admin() as admin:
        found = admin.tenants()
    return tell(found, *found, as_json=at.as_json)


@app.command
def create(tenant: Tenant, /, *, admins: Admins = (), at: AdminOptions = ADMIN) -> int:
    """Create a tenant."""
    with role_of(at, os.environ).open_admin() as admin:
        admin.create_tenant(tenant, admins)
    text = f"created tenant {tenant}, {_admins(admins)}"
    return tell({"tenant": tenant, "admins": list(admins)}, text, as_json=at.as_json)


@app.command(name="admins")
def set_admins(tenant: Tenant, /, *, admins: Admins = (), at: AdminOptions = ADMIN) -> int:
    """Make these roles, and no others, the admins of a tenant."""
    with role_of(at, os.environ).open_admin() as admin:
        admin.set_tenant_admins(tenant, admins)
    text = f"tenant {tenant}: {_admins(admins)}"
    return tell({"tenant": tenant, "admins": list(admins)}, text, as_json=at.as_json)


@app.command
def show(tenant: Tenant, /, *, at: AdminOptions = ADMIN) -> int:
    """Show the admins of a tenant."""
    with role_of(at, os.environ).open_admin() as admin:
        admins = admin.tenant_admins(tenant)
    text = f"tenant {tenant}: {_admins(admins)}"
    return tell({"tenant": tenant, "admins": admins}, text, as_json=at.as_json)


@app.command
def delete(tenant: Tenant, /, *, yes: Yes = False, at: AdminOptions = ADMIN) -> int:
    """Delete an empty tenant."""
    if not confirmed(f"delete tenant {tenant}", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        admin.delete_tenant(tenant)
    return tell({"deleted": tenant}, f"deleted tenant {tenant}", as_json=at.as_json)


def _admins(roles: Iterable[str]) -> str:
    return f"admins {', '.join(roles) or 'none'}"
