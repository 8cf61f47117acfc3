"""`anabranch brokers`: the running brokers, over the admin API."""

from __future__ import annotations

import os
from typing import Any

from anabranch.admin.models.body import plain
from anabranch.cli.answers import tell
from anabranch.cli.options import ADMIN, AdminOptions
from anabranch.cli.role import role_of


def brokers(*, at: AdminOptions = ADMIN) -> int:
    """List the running brokers and the stores that each of them serves."""
    with role_of(at, os.environ).open_admin() as admin:
        found = plain(admin.brokers())
    return tell(found, *map(_line, found), as_json=at.as_json)


def _line(broker: dict[str, Any]) -> str:
    name = "no broker" if broker["id"] is None else f"broker {broker['id']}"
    where = " ".join(filter(None, (broker["serviceUrl"], broker["webServiceUrl"])))
    stores = ", ".join(map(str, broker["stores"])) or "none"
    return "  ".join(filter(None, (name, where, f"stores {stores}")))
