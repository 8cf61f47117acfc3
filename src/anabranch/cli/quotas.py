"""`anabranch quotas ...`: show, set and remove the quotas of tenants and namespaces over the admin API."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.cli.role import role_of
from anabranch.config.files import parse_number
from anabranch.errors import InvalidConfigurationError
from anabranch.model.quotas import NAMESPACE_COUNTS, NAMESPACE_RATES, TENANT_COUNTS, TENANT_RATES

_USED = {name: name.removeprefix("max").lower() for name in TENANT_COUNTS}
"""The name of each count of a tenant in its usage."""


def run(arguments: argparse.Namespace) -> int:
    of = arguments.of
    with role_of(arguments, os.environ).open_admin() as admin:
        if arguments.action == "show":
            _show(admin, of, as_json=arguments.json)
        elif arguments.action == "set":
            quotas = dict(parse_quota(of, text) for text in arguments.quotas)
            admin.set_quotas(of, quotas)
            print(f"set {', '.join(quotas)} of {of}")
        else:
            names = arguments.names or list(admin.quotas(of))
            for name in names:
                _check_name(of, name)
            admin.set_quotas(of, dict.fromkeys(names))
            print(f"removed {', '.join(names)} of {of}" if names else f"{of} has no quotas")
    return 0


def _show(admin: AdminClient, of: str, *, as_json: bool) -> None:
    quotas = admin.quotas(of)
    usage = {} if "/" in of else plain(admin.usage(of))
    if as_json:
        print(json.dumps({"quotas": quotas, **({"usage": usage} if usage else {})}, indent=2))
        return
    for line in quota_lines(quotas, usage):
        print(line)
    if not quotas and not usage:
        print(f"{of} has no quotas")


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
        raise InvalidConfigurationError(f"{name!r} is no quota of {kind}; known are {', '.join(known)}")
