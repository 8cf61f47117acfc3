"""`anabranch policy ...`: the policies of namespaces and topics, over the admin API."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

from cyclopts import Parameter

from anabranch.admin.models.body import plain
from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Yes, command_group
from anabranch.cli.role import role_of
from anabranch.errors import InvalidConfigurationError

EXAMPLES = """\
examples:
  anabranch policy show public/default                          all policies of a namespace that are set
  anabranch policy set public/default messageTTL 3600           messages end after an hour
  anabranch policy set public/default retention '{"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}'
  anabranch policy remove persistent://public/default/orders maxProducers --yes

Names and values are those of Pulsar's admin API. A policy that this broker cannot apply is refused.
"""

app = command_group(
    "policy", "Show, set and remove the policies of namespaces and topics.", help_epilogue=EXAMPLES
)

Owner = Annotated[
    str,
    Parameter(name="OWNER", help="tenant/namespace, or topic://tenant/namespace/name, or persistent://..."),
]
PolicyName = Annotated[str, Parameter(name="NAME", help="the policy, such as retention")]


@app.command
def show(
    of: Owner,
    name: Annotated[
        str | None, Parameter(name="NAME", help="the policy (all of a namespace that are set)")
    ] = None,
    /,
    *,
    at: AdminOptions = ADMIN,
) -> int:
    """Show one policy, or all policies of a namespace that are set."""
    _check_owner(of)
    if name is None and "://" in of:
        raise InvalidConfigurationError("name the policy of a topic, such as retention")
    with role_of(at, os.environ).open_admin() as admin:
        if name is not None:
            found = {name: plain(admin.policy(of, name))}
        else:
            whole: dict[str, Any] = plain(admin.namespace_policies(of))
            found = {key: value for key, value in whole.items() if value not in (None, {}, [])}
    lines = [f"{key}: {'not set' if value is None else json.dumps(value)}" for key, value in found.items()]
    return tell(found, *lines or [f"{of} has no policies"], as_json=at.as_json)


@app.command(name="set")
def set_policy(
    of: Owner,
    name: PolicyName,
    value: Annotated[str, Parameter(name="VALUE", allow_leading_hyphen=True, help="JSON, or a plain word")],
    /,
    *,
    at: AdminOptions = ADMIN,
) -> int:
    """Set one policy; the others stay."""
    _check_owner(of)
    with role_of(at, os.environ).open_admin() as admin:
        admin.set_policy(of, name, value_of(value))
    return tell({"set": {name: value_of(value)}}, f"set {name} of {of}", as_json=at.as_json)


@app.command
def remove(of: Owner, name: PolicyName, /, *, yes: Yes = False, at: AdminOptions = ADMIN) -> int:
    """Remove one policy, so that the default holds."""
    _check_owner(of)
    if not confirmed(f"remove {name} of {of}", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        admin.remove_policy(of, name)
    return tell({"removed": name}, f"removed {name} of {of}", as_json=at.as_json)


def _check_owner(of: str) -> None:
    if "://" not in of and of.count("/") != 1:
        raise InvalidConfigurationError(
            f"{of!r} is neither a namespace nor a topic: write tenant/namespace, such as public/default, or "
            "the whole name of a topic, such as topic://public/default/orders"
        )


def value_of(text: str) -> Any:
    """Return the JSON value that an operator writes; a text that is not JSON is taken as it is."""
    try:
        return json.loads(text)
    except ValueError:
        if text[:1] in ("{", "["):
            raise InvalidConfigurationError(f"{text!r} is not valid JSON") from None
        return text
