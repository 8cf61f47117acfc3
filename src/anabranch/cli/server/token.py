"""`anabranch token`: makes keys and tokens in private files, and shows tokens without their signatures."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from anabranch.cli.answers import at_most_one, exactly_one, tell
from anabranch.cli.options import AsJson, command_group
from anabranch.cli.times import seconds_of
from anabranch.clock import SystemClock
from anabranch.errors import AnabranchError, ConflictError, InvalidConfigurationError
from anabranch.rights.callers import is_role
from anabranch.security.methods import issuing
from anabranch.security.methods.token_keys import public_key as read_public_key
from anabranch.security.methods.token_keys import secret_key as read_secret_key
from anabranch.security.methods.tokens import TOKEN_BYTES_MAX, TokenRules, judge, peek, text_of, verify
from anabranch.security.refusals import RefusedCredentialsError

KEY_BYTES_MAX: Final = 2**20

ABOUT = """\
Make keys and tokens, and look into tokens.

The tokens prove roles to brokers, without an issuer of tokens. Keys and tokens are read from files, because
other users can see the words of a command.
"""

EXAMPLES = """\
examples:
  anabranch token create-secret-key --output secret.key
  anabranch serve --set authentication=true --set token_secret_key=secret.key
  anabranch token create --secret-key secret.key --subject alice --expires 30d --output alice.token
  anabranch token show --file alice.token --secret-key secret.key
"""

app = command_group("token", ABOUT, help_epilogue=EXAMPLES)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TokenWords:
    """The claims of a token and the key that signs it."""

    subject: Annotated[str, Parameter(metavar="ROLE", help="the role that the token proves")]
    secret_key: Annotated[str | None, Parameter(metavar="FILE", help="secret key that brokers have too")] = (
        None
    )
    private_key: Annotated[
        str | None,
        Parameter(metavar="FILE", help="private key (PEM or DER) of a key pair"),
    ] = None
    expires: Annotated[
        str | None,
        Parameter(
            metavar="TIME",
            help="how long the token is valid: 30s, 15m, 12h, 30d, 1y; for ever if not given",
        ),
    ] = None
    audience: Annotated[
        str | None, Parameter(metavar="TEXT", help="the audience, as token_audience of brokers")
    ] = None
    issuer: Annotated[str | None, Parameter(metavar="TEXT", help="the name of the issuer")] = None
    key_id: Annotated[
        str | None, Parameter(metavar="ID", help="id of the key, where brokers have a key set")
    ] = None
    algorithm: Annotated[
        str | None,
        Parameter(metavar="NAME", help="HS256, RS256, ES256...; the first that fits the key if not given"),
    ] = None
    output: Annotated[
        str | None,
        Parameter(metavar="FILE", help="write the token to this new file (0600) instead of printing it"),
    ] = None


@app.command
def create(*, made: TokenWords, as_json: AsJson = False) -> int:
    """Make a token for a role."""
    exactly_one(secret_key=made.secret_key, private_key=made.private_key)
    if not is_role(made.subject):
        raise InvalidConfigurationError(f"--subject {made.subject!r} is not a valid role")
    claims = _claims(made.subject, made.expires, made.audience, made.issuer)
    if made.secret_key is not None:
        key = issuing.signing_secret(_read(made.secret_key))
    else:
        key = issuing.signing_private_key(_read(made.private_key or ""))
    token = issuing.sign(claims, key, made.algorithm, made.key_id)
    if made.output is None:
        return tell({"token": token}, token, as_json=as_json)
    write_new(made.output, token.encode() + b"\n")
    return tell({"file": made.output}, as_json=as_json)


def _claims(role: str, expires: str | None, audience: str | None, issuer: str | None) -> dict[str, Any]:
    now_s = int(_now_s())
    claims: dict[str, Any] = {"sub": role, "iat": now_s}
    if expires is not None:
        claims["exp"] = now_s + seconds_of(expires)
    claims |= {"aud": audience} if audience else {}
    return claims | ({"iss": issuer} if issuer else {})


@app.command
def show(
    *,
    file: Annotated[
        str,
        Parameter(metavar="FILE", allow_leading_hyphen=True, help="the token; standard input if not given"),
    ] = "-",
    secret_key: Annotated[
        str | None,
        Parameter(metavar="FILE", help="check the signature with this secret key"),
    ] = None,
    public_key: Annotated[
        str | None,
        Parameter(metavar="FILE", help="check the signature with this public key"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show the claims of a token, and whether it is valid.

    The command shows the header and the claims of a token, never its signature. With a key, its signature
    is checked too. The command exits with 1 if the token is not valid.
    """
    at_most_one(secret_key=secret_key, public_key=public_key)
    data = sys.stdin.buffer.read(TOKEN_BYTES_MAX + 1) if file == "-" else _read(file)
    try:
        token = text_of(data.strip())
        header, claims = peek(token)
    except RefusedCredentialsError as error:
        raise InvalidConfigurationError(error.reason) from None
    problem = _problem(token, claims, secret_key, public_key)
    signature = "checked" if secret_key or public_key else "not checked"
    shown = {"header": header, "claims": claims, "signature": signature, "problem": problem}
    lines = [
        f"header     {json.dumps(header)}",
        *(f"{name:10} {json.dumps(value)}{_when(name, value)}" for name, value in claims.items()),
        f"signature  {signature}",
        f"valid      {'no: ' + problem if problem else 'yes'}",
    ]
    tell(shown, *lines, as_json=as_json)
    return 1 if problem else 0


@app.command
def create_secret_key(
    *,
    output: Annotated[str, Parameter(metavar="FILE", help="write the key to this new file (0600)")],
    algorithm: Annotated[
        Literal["HS256", "HS384", "HS512"],
        Parameter(help="the key is long enough for this algorithm (HS256)"),
    ] = "HS256",
    as_json: AsJson = False,
) -> int:
    """Make a secret key, which brokers and issuer share."""
    write_new(output, secrets.token_bytes(issuing.secret_bytes_of(algorithm)))
    return tell({"file": output}, as_json=as_json)


@app.command
def create_key_pair(
    *,
    output_private_key: Annotated[
        str, Parameter(metavar="FILE", help="write the private key to this new file")
    ],
    output_public_key: Annotated[
        str, Parameter(metavar="FILE", help="write the public key to this new file")
    ],
    algorithm: Annotated[
        Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"],
        Parameter(help="the algorithm of the tokens (RS256)"),
    ] = "RS256",
    form: Annotated[
        Literal["der", "pem"], Parameter(name="--format", help="format of the files (der)")
    ] = "der",
    as_json: AsJson = False,
) -> int:
    """Make a private key for the issuer and a public key for brokers.

    The private key signs tokens and stays with the issuer; brokers need the public key alone. The files are
    DER, as Pulsar reads them, or PEM.
    """
    made = issuing.make_key_pair(algorithm, pem=form == "pem")
    write_new(output_private_key, made.private)
    write_new(output_public_key, made.public, mode=0o644)
    return tell({"private_key": output_private_key, "public_key": output_public_key}, as_json=as_json)


def write_new(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file that does not exist yet, readable by its owner alone."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise ConflictError(f"{path} exists already; remove it first, or choose another file") from None
    with os.fdopen(file, "wb") as stream:
        stream.write(data)


def _read(path: str) -> bytes:
    if path.startswith("data:"):
        raise InvalidConfigurationError("keys are read from files; other users can see words of a command")
    with open(Path(path.removeprefix("file://")), "rb") as stream:
        return stream.read(KEY_BYTES_MAX)


def _problem(token: str, claims: Any, secret: str | None, public: str | None) -> str:
    """The reason why a broker would refuse the token; empty if there is none."""
    try:
        if secret:
            verify(token, read_secret_key(_read(secret)))
        elif public:
            verify(token, read_public_key(_read(public)))
        judge(claims, TokenRules(), _now_s())
    except RefusedCredentialsError as error:
        return error.reason
    except AnabranchError as error:
        return str(error)
    return ""


def _now_s() -> float:
    return SystemClock().wall_ms() / 1000


def _when(name: str, value: Any) -> str:
    if name not in ("exp", "nbf", "iat") or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    try:
        return f"  ({time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(value))})"
    except (OverflowError, ValueError, OSError):
        return ""
