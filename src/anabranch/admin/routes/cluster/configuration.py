"""`/admin/v2/brokers/configuration`: the settings of all brokers, and those that change while they run."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Final

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import PreconditionFailedError
from anabranch.admin.http.calls import Call
from anabranch.config.broker import BrokerConfig
from anabranch.config.dynamic import DYNAMIC, with_values
from anabranch.errors import InvalidConfigurationError
from anabranch.metadata.configuration import ConfigurationStore
from anabranch.rights.rows import SUPERUSER

HIDDEN: Final = "*****"
"""Shown instead of a setting that may hold a secret."""


async def list_dynamic(call: Call) -> list[str]:
    """The settings that can be changed while brokers run."""
    return sorted(DYNAMIC)


async def dynamic_values(call: Call) -> dict[str, str]:
    """The settings that were changed while brokers run."""
    return await ConfigurationStore(call.topics.store).load()


async def runtime(call: Call) -> dict[str, str]:
    """Every setting of this broker, by Pulsar's name where it has one."""
    return shown_settings(call.broker.quotas.book.config)


def shown_settings(config: BrokerConfig) -> dict[str, str]:
    """Return the settings as texts; a setting that may hold a secret is hidden."""
    shown: dict[str, str] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        if not is_dataclass(value):
            secret = one.metadata.get("secret") and value
            shown[one.metadata.get("pulsar") or one.name] = HIDDEN if secret else _text(value)
    return dict(sorted(shown.items()))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


async def change(call: Call) -> None:
    """Change a setting of all brokers, now and after their next start."""
    name, value = _dynamic(call), call.part("value")
    try:
        with_values(call.broker.config, {name: value})
    except InvalidConfigurationError as error:
        raise PreconditionFailedError(str(error)) from error
    await ConfigurationStore(call.topics.store).set(name, value)


async def reset(call: Call) -> None:
    """Let a setting have the value of the configuration files again."""
    await ConfigurationStore(call.topics.store).set(_dynamic(call), None)


def _dynamic(call: Call) -> str:
    """Return the setting in the path; PreconditionFailedError if it cannot change while brokers run."""
    name = call.part("name")
    if name in DYNAMIC:
        return name
    if name not in shown_settings(call.broker.config):
        raise PreconditionFailedError(
            f"there is no setting {name!r}; GET .../configuration/runtime lists all"
        )
    raise PreconditionFailedError(
        f"{name} cannot be changed while brokers run: set it in their configuration and start them again, "
        "or set a policy of a namespace or topic"
    )


CONFIGURATION = "/admin/v2/brokers/configuration"

ENDPOINTS = [
    AdminEndpoint("GET", CONFIGURATION, SUPERUSER, list_dynamic),
    AdminEndpoint("GET", CONFIGURATION + "/values", SUPERUSER, dynamic_values),
    AdminEndpoint("GET", CONFIGURATION + "/runtime", SUPERUSER, runtime),
    AdminEndpoint("POST", CONFIGURATION + "/{name}/{value}", SUPERUSER, change),
    AdminEndpoint("DELETE", CONFIGURATION + "/{name}", SUPERUSER, reset),
]
