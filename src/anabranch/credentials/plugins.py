"""Credentials by the names of Pulsar's configuration: `authPlugin`, the name of a class, and `authParams`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from anabranch.credentials.asking import checked_authentication
from anabranch.credentials.authentication import (
    Authentication,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
)
from anabranch.credentials.oauth2 import AuthenticationOauth2
from anabranch.errors import InvalidConfigurationError

_OURS: Final[dict[str, Any]] = {
    "token": AuthenticationToken,
    "tls": AuthenticationTLS,
    "basic": AuthenticationBasic,
    "oauth2": AuthenticationOauth2,
}

_JAVA: Final = "org.apache.pulsar.client.impl.auth."


def authentication_from(plugin: str, parameters: str) -> Authentication | None:
    """Credentials of `token`, `tls`, `basic`, `oauth2`, one of Pulsar's classes, or `package.module:Class`.

    A class of an application gets the parameters as text, from its `from_parameters` if it has one. Without a
    name there are no credentials. Raises InvalidConfigurationError.
    """
    plugin = plugin.strip()
    if not plugin:
        if parameters.strip():
            raise InvalidConfigurationError("authParams are given without authPlugin, such as `token`")
        return None
    kind = _OURS.get(_short(plugin))
    if kind is None:
        kind = _own_class(plugin)
    make = getattr(kind, "from_parameters", kind)
    return checked_authentication(make(parameters))


def _short(plugin: str) -> str:
    """Return the short name of one of Pulsar's classes in Java; any other name as it is."""
    name = plugin.removeprefix(_JAVA).removeprefix("oauth2.")
    return name.removeprefix("Authentication").lower() if plugin.startswith(_JAVA) else name.lower()


def _own_class(plugin: str) -> Any:
    module, _, name = plugin.partition(":")
    try:
        if not name:
            raise ImportError
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        raise InvalidConfigurationError(
            f"there is no authentication plugin {plugin!r}; write token, tls, basic, oauth2, the name of one "
            "of Pulsar's classes, or package.module:Class"
        ) from None
