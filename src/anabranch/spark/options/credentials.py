"""The options with which driver and executors authenticate.

Spark shows options in error texts, unless their names contain words such as `token` or `secret`. So a secret
is refused in an option that Spark shows. A reference to a secret, such as `file:///path`, is read where it is
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.credentials.parameters import one_of_names, parse_parameters
from anabranch.credentials.secret_sources import is_place
from anabranch.errors import InvalidConfigurationError

if TYPE_CHECKING:
    from anabranch.credentials.authentication import Authentication

PLUGIN = ("authpluginclassname", "authplugin")
SHOWN = "authparams"
HIDDEN = "authsecretparams"
TOKEN = "authtoken"
NAMES = (*PLUGIN, SHOWN, HIDDEN, TOKEN)
"""The options in lower case, without dots and without the prefix `client.`."""


@dataclass(frozen=True, slots=True)
class SparkCredentials:
    """The name and the parameters of credentials. It is sent to executors, and `repr` shows no secret."""

    plugin: str
    parameters: str = field(repr=False)

    def make(self) -> Authentication | None:
        """Return the credentials, in the process that uses them."""
        # Imported late: most queries have no credentials, and every process of a job loads this module.
        from anabranch.credentials.plugins import authentication_from

        return authentication_from(self.plugin, self.parameters)


def read_credentials(given: Mapping[str, str]) -> SparkCredentials | None:
    """Return the credentials in the options, or None if there are none; raises InvalidConfigurationError."""
    token = given.get(TOKEN)
    plugin = one_of_names(given, PLUGIN) or ""
    if token is not None:
        if plugin or SHOWN in given or HIDDEN in given:
            raise InvalidConfigurationError(
                "give client.auth.token, or authPluginClassName with its parameters, not both"
            )
        return SparkCredentials("token", token)
    if SHOWN in given and HIDDEN in given:
        raise InvalidConfigurationError("give authParams or client.auth.secretParams, not both")
    if not (plugin or SHOWN in given or HIDDEN in given):
        return None
    found = SparkCredentials(plugin, given.get(HIDDEN, given.get(SHOWN, "")))
    made = found.make()
    if made is None:
        return None
    if HIDDEN not in given and _holds_secret(made, found.parameters):
        raise InvalidConfigurationError(
            "authParams contains a secret, which Spark shows in error texts; put it into a file "
            "(authParams=file:///path), or give it as client.auth.secretParams, which Spark hides"
        )
    return found


def _holds_secret(made: Authentication, parameters: str) -> bool:
    from anabranch.credentials.authentication import AuthenticationBasic, AuthenticationToken
    from anabranch.credentials.oauth2 import AuthenticationOauth2

    match made:
        case AuthenticationBasic():
            return True
        case AuthenticationToken():
            text = parameters.strip()
            values = parse_parameters(text) if text.startswith("{") else {"": text}
            return not all(name in ("file", "env") or is_place(value) for name, value in values.items())
        case AuthenticationOauth2():
            values = parse_parameters(parameters)
            key = one_of_names(values, ("private_key", "privateKey")) or ""
            return key.startswith("data:") or "client_secret" in values or "clientSecret" in values
        case _:
            return False
