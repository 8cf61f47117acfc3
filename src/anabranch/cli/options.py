"""The options and arguments that several commands share, with their help. Imports the parser, and no client.

No option takes a secret: the arguments of a process can be read by every user of the machine, and shells
keep them in their history. Secrets come from files and from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import App, Group, Parameter

SECRET_OPTIONS: Final = ("--token", "--auth-params", "--password")
"""Options that other tools have, and that no command takes."""

BROKER: Final = Group("Broker", sort_key=100)

TOPIC: Final = (
    "topic://tenant/namespace/name, persistent://tenant/namespace/name, or a bare name of "
    "topic://public/default"
)

Topic = Annotated[str, Parameter(help=TOPIC)]
Namespace = Annotated[str, Parameter(help="tenant/namespace")]
Subscription = Annotated[str, Parameter(help="name of the subscription")]
AsJson = Annotated[bool, Parameter(name="--json", help="print JSON")]
Yes = Annotated[bool, Parameter(name="--yes", help="do not ask; needed without a terminal")]
DataDirectory = Annotated[str, Parameter(metavar="DIR", help="data directory (./anabranch-data)")]
Settings = Annotated[
    tuple[str, ...],
    Parameter(name="--set", metavar="KEY=VALUE", help="change one setting; may be repeated"),
]


@Parameter(name="*", group=BROKER)
@dataclass(frozen=True, kw_only=True)
class RoleOptions:
    """Which role a command has, and how it proves it."""

    token_file: Annotated[
        str | None,
        Parameter(
            metavar="FILE",
            help="file with the token that proves the role; or ANABRANCH_TOKEN, or ANABRANCH_AUTH_PLUGIN "
            "with ANABRANCH_AUTH_PARAMS",
        ),
    ] = None
    client_conf: Annotated[
        str | None,
        Parameter(
            metavar="FILE",
            help="file like Pulsar's client.conf, with addresses, credentials and TLS; or "
            "ANABRANCH_CLIENT_CONF",
        ),
    ] = None
    tls_trust_certs: Annotated[
        str | None,
        Parameter(
            metavar="FILE",
            help="certificates (PEM) of trusted authorities, for TLS; or ANABRANCH_TLS_TRUST_CERTS",
        ),
    ] = None


@Parameter(name="*", group=BROKER)
@dataclass(frozen=True, kw_only=True)
class AdminOptions(RoleOptions):
    """The options of a command over the admin API."""

    admin_url: Annotated[
        str | None,
        Parameter(
            metavar="URL",
            help="the broker's HTTP address; or ANABRANCH_ADMIN_URL (http://127.0.0.1:8080)",
        ),
    ] = None
    as_json: Annotated[bool, Parameter(name="--json", group="Parameters", help="print JSON")] = False


@Parameter(name="*", group=BROKER)
@dataclass(frozen=True, kw_only=True)
class ServiceOptions(RoleOptions):
    """The options of a command that sends or receives messages."""

    url: Annotated[
        str | None,
        Parameter(
            name=("--url", "--service-url"),
            metavar="URL",
            help="the broker's address; or ANABRANCH_URL (pulsar://127.0.0.1:6650)",
        ),
    ] = None


ADMIN: Final = AdminOptions()
SERVICE: Final = ServiceOptions()


def command_group(name: str, about: str, **more: Any) -> App:
    """Make the application of a command with sub-commands."""
    return App(name=name, help=about, **more)
