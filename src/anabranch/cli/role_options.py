"""The options of every command that talks to a broker. Imports nothing that takes time.

No option takes a secret: the arguments of a process can be read by every user of the machine, and shells
keep them in their history. Secrets come from files and from the environment.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


def add_role_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that say which role the command has."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token that proves the role; or ANABRANCH_TOKEN, or ANABRANCH_AUTH_PLUGIN with "
        "ANABRANCH_AUTH_PARAMS",
    )
    parser.add_argument(
        "--client-conf",
        metavar="FILE",
        help="file like Pulsar's client.conf, with addresses, credentials and TLS; or ANABRANCH_CLIENT_CONF",
    )
    parser.add_argument(
        "--tls-trust-certs",
        metavar="FILE",
        help="certificates (PEM) of trusted authorities, for TLS; or ANABRANCH_TLS_TRUST_CERTS",
    )
    for secret in ("--token", "--auth-params", "--password"):
        parser.add_argument(secret, action=_RefuseSecret, help=argparse.SUPPRESS)


class _RefuseSecret(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(
            "a secret in the arguments can be read by every user of this machine; put it into a file "
            "(--token-file) or into the environment (ANABRANCH_TOKEN)"
        )
