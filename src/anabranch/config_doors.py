"""The settings that say which addresses and web pages may reach a broker: a part of `BrokerConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.config_fields import setting


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
