"""The options of the commands that make and show tokens. Imports nothing that takes time."""

from __future__ import annotations

import argparse

from anabranch.cli.topic_parser import Commands

EPILOG = """\
examples:
  anabranch token create-secret-key --output secret.key
  anabranch serve --set authentication=true --set token_secret_key=secret.key
  anabranch token create --secret-key secret.key --subject alice --expires 30d --output alice.token
  anabranch token show --file alice.token --secret-key secret.key
"""


def add_token(commands: Commands) -> None:
    parser = commands.add_parser(
        "token",
        help="make keys and tokens, and look into tokens",
        description="Make keys and the tokens that prove roles to brokers, without an issuer of tokens. "
        "Keys and tokens are read from files, because other users can see the words of a command.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_create(actions)
    _add_show(actions)
    _add_create_secret_key(actions)
    _add_create_key_pair(actions)


def _add_create(actions: Commands) -> None:
    create = actions.add_parser("create", help="make a token for a role")
    keys = create.add_mutually_exclusive_group(required=True)
    keys.add_argument("--secret-key", metavar="FILE", help="secret key that brokers have too")
    keys.add_argument("--private-key", metavar="FILE", help="private key (PEM or DER) of a key pair")
    create.add_argument("--subject", metavar="ROLE", required=True, help="the role that the token proves")
    create.add_argument(
        "--expires",
        metavar="TIME",
        help="how long the token is valid: 30s, 15m, 12h, 30d, 1y; for ever if not given",
    )
    create.add_argument("--audience", metavar="TEXT", help="the audience, as token_audience of brokers")
    create.add_argument("--issuer", metavar="TEXT", help="the name of the issuer")
    create.add_argument("--key-id", metavar="ID", help="id of the key, where brokers have a key set")
    create.add_argument(
        "--algorithm", metavar="NAME", help="HS256, RS256, ES256...; the first that fits the key if not given"
    )
    _add_output(create, "write the token to this new file (0600) instead of printing it", required=False)
    create.set_defaults(run=_create)


def _add_show(actions: Commands) -> None:
    show = actions.add_parser(
        "show",
        help="show the claims of a token, and whether it is valid",
        description="Show the header and the claims of a token, never its signature. With a key, its "
        "signature is checked too. The command exits with 1 if the token is not valid.",
    )
    show.add_argument("--file", metavar="FILE", default="-", help="the token; standard input if not given")
    keys = show.add_mutually_exclusive_group()
    keys.add_argument("--secret-key", metavar="FILE", help="check the signature with this secret key")
    keys.add_argument("--public-key", metavar="FILE", help="check the signature with this public key")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=_show)


def _add_create_secret_key(actions: Commands) -> None:
    secret = actions.add_parser("create-secret-key", help="make a secret key, which brokers and issuer share")
    secret.add_argument(
        "--algorithm",
        choices=["HS256", "HS384", "HS512"],
        default="HS256",
        help="the key is long enough for this algorithm (HS256)",
    )
    _add_output(secret, "write the key to this new file (0600)")
    secret.set_defaults(run=_create_secret_key)


def _add_create_key_pair(actions: Commands) -> None:
    pair = actions.add_parser(
        "create-key-pair",
        help="make a private key for the issuer and a public key for brokers",
        description="Make a key pair. The private key signs tokens and stays with the issuer; brokers need "
        "the public key alone. The files are DER, as Pulsar reads them, or PEM.",
    )
    pair.add_argument(
        "--algorithm",
        choices=["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"],
        default="RS256",
        help="the algorithm of the tokens (RS256)",
    )
    pair.add_argument("--format", choices=["der", "pem"], default="der", help="format of the files (der)")
    pair.add_argument(
        "--output-private-key", metavar="FILE", required=True, help="write the private key to this new file"
    )
    pair.add_argument(
        "--output-public-key", metavar="FILE", required=True, help="write the public key to this new file"
    )
    pair.set_defaults(run=_create_key_pair)


def _add_output(parser: argparse.ArgumentParser, about: str, *, required: bool = True) -> None:
    parser.add_argument("--output", metavar="FILE", required=required, help=about)


def _create(arguments: argparse.Namespace) -> int:
    from anabranch.cli import token

    return token.create(arguments)


def _show(arguments: argparse.Namespace) -> int:
    from anabranch.cli import token

    return token.show(arguments)


def _create_secret_key(arguments: argparse.Namespace) -> int:
    from anabranch.cli import token

    return token.create_secret_key(arguments)


def _create_key_pair(arguments: argparse.Namespace) -> int:
    from anabranch.cli import token

    return token.create_key_pair(arguments)
