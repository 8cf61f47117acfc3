"""`anabranch quotas ...`: show, set and remove the quotas of tenants and namespaces over the admin API."""

from __future__ import annotations

import os
from typing import Annotated, Any

from cyclopts import Parameter

from anabranch.admin.models.body import plain
from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Yes, command_group
from anabranch.cli.role import role_of
from anabranch.config.files import parse_number
from anabranch.errors import InvalidConfigurationError
from anabranch.model.policies.quotas import NAMESPACE_COUNTS, NAMESPACE_RATES, TENANT_COUNTS, TENANT_RATES

_USED = {name: name.removeprefix("max").lower() for name in TENANT_COUNTS}
"""The name of each count of a tenant in its usage."""

NAMES = """\
quotas of a tenant:
  maxConnections, maxNamespaces, maxTopics, maxSubscriptions, maxProducers, maxConsumers,
  publishRate, dispatchRate
quotas of a namespace, as Pulsar names them:
  maxProducersPerTopic, maxConsumersPerTopic, maxConsumersPerSubscription, maxSubscriptionsPerTopic,
  maxTopicsPerNamespace, publishRate, dispatchRate, subscriptionDispatchRate
quotas of a topic, instead of those of its namespace:
  publishRate, dispatchRate, subscriptionDispatchRate

A count of 0 means no limit. A rate is MESSAGES, or MESSAGES,BYTES, each second; -1 means no limit. Examples:
  anabranch quotas set acme maxConnections=200 publishRate=5000,10MiB
  anabranch quotas set acme/orders maxProducersPerTopic=10 dispatchRate=-1,1MiB
  anabranch quotas set topic://acme/orders/paid publishRate=1000
"""

app = command_group(
    "quotas", "Show, set and remove the quotas of tenants, namespaces and topics.", help_epilogue=NAMES
)

Owner = Annotated[
    str,
    Parameter(
        name="OWNER",
        help="a tenant like acme, a namespace like acme/orders, or a topic like topic://acme/orders/paid",
    ),
]


@app.command
def show(of: Owner, /, *, at: AdminOptions = ADMIN) -> int:
    """Show the quotas of a tenant or namespace, and what a tenant uses of them."""
    with role_of(at, os.environ).open_admin() as admin:
        quotas = admin.quotas(of)
        usage = {} if "/" in of else plain(admin.usage(of))
    lines = quota_lines(quotas, usage) if quotas or usage else [f"{of} has no quotas"]
    return tell({"quotas": quotas, **({"usage": usage} if usage else {})}, *lines, as_json=at.as_json)


@app.command(name="set")
def set_quotas(
    of: Owner,
    first: Annotated[str, Parameter(name="NAME=VALUE", help="a quota and its value")],
    /,
    *others: Annotated[str, Parameter(name="NAME=VALUE", show=False)],
    at: AdminOptions = ADMIN,
) -> int:
    """Set quotas; the others stay."""
    quotas = dict(parse_quota(of, text) for text in (first, *others))
    with role_of(at, os.environ).open_admin() as admin:
        admin.set_quotas(of, quotas)
    return tell({"set": quotas}, f"set {', '.join(quotas)} of {of}", as_json=at.as_json)


@app.command
def remove(
    of: Owner,
    /,
    *names: Annotated[str, Parameter(name="NAME", help="a quota")],
    yes: Yes = False,
    at: AdminOptions = ADMIN,
) -> int:
    """Remove quotas, all of them by default."""
    if not confirmed(f"remove {', '.join(names) or 'all quotas'} of {of}", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        chosen = list(names) or list(admin.quotas(of))
        for name in chosen:
            _check_name(of, name)
        admin.set_quotas(of, dict.fromkeys(chosen))
    text = f"removed {', '.join(chosen)} of {of}" if chosen else f"{of} has no quotas"
    return tell({"removed": chosen}, text, as_json=at.as_json)


def quota_lines(quotas: dict[str, Any], usage: dict[str, int]) -> list[str]:
    """One line for each quota that is set, and for each count of a tenant."""
    lines = [f"{name}: {usage[used]} of {quotas.get(name) or 'any'}" for name, used in _USED.items() if usage]
    counts = (name for name in NAMESPACE_COUNTS if name in quotas)
    lines += [f"{name}: {quotas[name]}" for name in counts]
    rates = (name for name in NAMESPACE_RATES if name in quotas)
    return lines + [f"{name}: {_rate_text(quotas[name])}" for name in rates]


def _rate_text(rate: dict[str, Any]) -> str:
    prefix = "publish" if "publishThrottlingRateInMsg" in rate else "dispatch"
    units = {"Msg": "messages", "Byte": "bytes"}
    limits = [(rate[f"{prefix}ThrottlingRateIn{unit}"], noun) for unit, noun in units.items()]
    text = " and ".join(f"{limit} {noun}" for limit, noun in limits if limit > 0) or "no limit of"
    period = rate.get("ratePeriodInSecond", 1)
    more = " more than are published" if rate.get("relativeToPublishRate") else ""
    return f"{text}{more} {'a second' if period == 1 else f'in {period} seconds'}"


def parse_quota(of: str, text: str) -> tuple[str, Any]:
    """A quota as it was written, `name=value`, in the form of the admin API."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidConfigurationError(f"{text!r}: write it as name=value")
    _check_name(of, name)
    numbers = [parse_number(name, part) for part in value.split(",")]
    rates = (*NAMESPACE_RATES, *TENANT_RATES)
    if len(numbers) > (2 if name in rates else 1):
        raise InvalidConfigurationError(f"{text!r}: a count is one number, a rate MESSAGES or MESSAGES,BYTES")
    if name not in rates:
        return name, numbers[0]
    prefix = "publish" if name == "publishRate" else "dispatch"
    messages, size = (*numbers, -1)[:2]
    return name, {f"{prefix}ThrottlingRateInMsg": messages, f"{prefix}ThrottlingRateInByte": size}


def _check_name(of: str, name: str) -> None:
    kind, known = "a tenant", [*TENANT_COUNTS, *TENANT_RATES]
    if "://" in of:
        kind, known = "a topic", [*NAMESPACE_RATES]
    elif "/" in of:
        kind, known = "a namespace", [*NAMESPACE_COUNTS, *NAMESPACE_RATES]
    if name not in known:
        raise InvalidConfigurationError(f"{name!r} is not a quota of {kind}; known: {', '.join(known)}")
