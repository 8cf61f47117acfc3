"""The settings that say which addresses and web pages may reach a broker: a part of `BrokerConfig`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from anabranch.config.fields import setting
from anabranch.errors import InvalidConfigurationError


@dataclass(frozen=True, kw_only=True)
class DoorsConfig:
    """Which clients may reach a broker before they prove a role."""

    allow_unauthenticated: bool = setting(
        False,
        "Serve without authentication on an address that other machines reach: any client may do anything.",
    )
    http_allowed_hosts: str = setting(
        "",
        "More host names of the HTTP port, by commas: name, *.domain, or * for all; others are refused.",
    )


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach the address.

    Host names other than localhost count as reachable from outside.
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_open_door(host: str, *, authentication: bool, allowed: bool) -> None:
    """Refuse to serve every client of a network unless the operator has said so."""
    if authentication or allowed or is_loopback(host):
        return
    raise InvalidConfigurationError(
        f"other machines reach {host}, and without authentication any of them may do anything; switch "
        "authentication on (authenticationEnabled, see docs/security.md), or listen on 127.0.0.1, or allow "
        "it with --allow-unauthenticated"
    )
