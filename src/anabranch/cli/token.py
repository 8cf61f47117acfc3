"""`anabranch token`: makes keys and tokens in private files, and shows tokens without their signatures."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
import time
from pathlib import Path
from typing import Any, Final

from anabranch.clock import SystemClock
from anabranch.errors import AnabranchError, ConflictError, InvalidConfigurationError
from anabranch.rights.callers import is_role
from anabranch.security import issuing
from anabranch.security.refusals import RefusedCredentialsError
from anabranch.security.token_keys import public_key, secret_key
from anabranch.security.tokens import TOKEN_BYTES_MAX, TokenRules, judge, peek, text_of, verify

KEY_BYTES_MAX: Final = 2**20
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 365 * 86_400}


def create(arguments: argparse.Namespace) -> int:
    role = arguments.subject
    if not is_role(role):
        raise InvalidConfigurationError(f"--subject {role!r} is not a valid role")
    now_s = int(_now_s())
    claims: dict[str, Any] = {"sub": role, "iat": now_s}
    if arguments.expires is not None:
        claims["exp"] = now_s + seconds_of(arguments.expires)
    claims |= {"aud": arguments.audience} if arguments.audience else {}
    claims |= {"iss": arguments.issuer} if arguments.issuer else {}
    if arguments.secret_key is not None:
        key = issuing.signing_secret(_read(arguments.secret_key))
    else:
        key = issuing.signing_private_key(_read(arguments.private_key))
    token = issuing.sign(claims, key, arguments.algorithm, arguments.key_id)
    if arguments.output is None:
        print(token)
    else:
        write_new(arguments.output, token.encode() + b"\n")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print header, claims and validity; returns 1 if the token is not valid."""
    data = sys.stdin.buffer.read(TOKEN_BYTES_MAX + 1) if arguments.file == "-" else _read(arguments.file)
    try:
        token = text_of(data.strip())
        header, claims = peek(token)
    except RefusedCredentialsError as error:
        raise InvalidConfigurationError(error.reason) from None
    problem = _problem(token, claims, arguments)
    signature = "checked" if arguments.secret_key or arguments.public_key else "not checked"
    if arguments.json:
        shown = {"header": header, "claims": claims, "signature": signature, "problem": problem}
        print(json.dumps(shown))
    else:
        print(f"header     {json.dumps(header)}")
        for name, value in claims.items():
            print(f"{name:10} {json.dumps(value)}{_when(name, value)}")
        print(f"signature  {signature}")
        print(f"valid      {'no: ' + problem if problem else 'yes'}")
    return 1 if problem else 0


def create_secret_key(arguments: argparse.Namespace) -> int:
    write_new(arguments.output, secrets.token_bytes(issuing.secret_bytes_of(arguments.algorithm)))
    return 0


def create_key_pair(arguments: argparse.Namespace) -> int:
    made = issuing.make_key_pair(arguments.algorithm, pem=arguments.format == "pem")
    write_new(arguments.output_private_key, made.private)
    write_new(arguments.output_public_key, made.public, mode=0o644)
    return 0


def seconds_of(text: str) -> int:
    """The seconds of a time such as `30d`; raises InvalidConfigurationError."""
    found = re.fullmatch(r"(\d{1,9})([smhdwy])", text.strip())
    if found is None or int(found[1]) == 0:
        raise InvalidConfigurationError(f"{text!r} is no time; write it as 30s, 15m, 12h, 30d, 4w or 1y")
    return int(found[1]) * SECONDS[found[2]]


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


def _problem(token: str, claims: Any, arguments: argparse.Namespace) -> str:
    """The reason why a broker would refuse the token; empty if there is none."""
    try:
        if arguments.secret_key:
            verify(token, secret_key(_read(arguments.secret_key)))
        elif arguments.public_key:
            verify(token, public_key(_read(arguments.public_key)))
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
