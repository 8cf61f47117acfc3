"""Files of user names and password hashes, as `htpasswd` writes them: bcrypt, MD5 (apr1) and SHA-1."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

from anabranch.errors import InvalidConfigurationError
from anabranch.rights.callers import is_role

BCRYPT_PASSWORD_BYTES_MAX: Final = 72
"""bcrypt ignores any further bytes, and htpasswd cuts them off."""
BCRYPT_COST_MAX: Final = 16

_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_APR1: Final = re.compile(r"\$apr1\$([./A-Za-z0-9]{1,8})\$([./A-Za-z0-9]{22})")
_SHA: Final = re.compile(r"\{SHA\}[A-Za-z0-9+/]{27}=")
_DIGITS: Final = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_APR1_ROUNDS: Final = 1000


def parse(data: bytes) -> Mapping[str, str]:
    """Return the hashes by user; raises InvalidConfigurationError, which never shows a hash."""
    users: dict[str, str] = {}
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidConfigurationError("the file of passwords is not UTF-8") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, hashed = line.strip().partition(":")
        if not colon or not is_role(user):
            raise InvalidConfigurationError(f"line {number} of the file of passwords is not user:hash")
        if not _is_supported(hashed):
            raise InvalidConfigurationError(
                f"line {number} of the file of passwords has a hash that is not supported; "
                "write it again with `htpasswd -B`"
            )
        users[user] = hashed
    return users


def matches(password: bytes, hashed: str) -> bool:
    """Return whether a password has this hash; bcrypt takes its time, so call it in a thread."""
    if hashed.startswith("$2"):
        import bcrypt

        # htpasswd marks the corrected algorithm with y, the library with b.
        return bcrypt.checkpw(password[:BCRYPT_PASSWORD_BYTES_MAX], b"$2b" + hashed[3:].encode())
    found = _APR1.fullmatch(hashed)
    made = apr1(password, found[1]) if found else sha(password)
    return hmac.compare_digest(made, hashed)


def cost_of(hashed: str) -> int:
    """Return roughly how much work a hash needs; 0 if it may run in the event loop."""
    found = _BCRYPT.fullmatch(hashed)
    if found:
        return 1 << int(found[1])
    return 2 if hashed.startswith("$apr1$") else 0


def sha(password: bytes) -> str:
    return "{SHA}" + base64.b64encode(hashlib.sha1(password, usedforsecurity=False).digest()).decode()


def apr1(password: bytes, salt: str) -> str:
    """Apache's form of MD5-crypt."""
    seed = salt.encode()
    inner = _md5(password + seed + password)
    parts = [password, b"$apr1$", seed]
    parts += [inner[: min(16, left)] for left in range(len(password), 0, -16)]
    length = len(password)
    while length:
        parts.append(b"\0" if length & 1 else password[:1])
        length >>= 1
    digest = _md5(b"".join(parts))
    for number in range(_APR1_ROUNDS):
        odd = number & 1
        mixed = password if odd else digest
        mixed += (seed if number % 3 else b"") + (password if number % 7 else b"")
        digest = _md5(mixed + (digest if odd else password))
    return f"$apr1${salt}${_encode(digest)}"


def _encode(digest: bytes) -> str:
    order = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))
    groups = [(digest[a] << 16 | digest[b] << 8 | digest[c], 4) for a, b, c in order]
    text = ""
    for number, digits in (*groups, (digest[11], 2)):
        for _ in range(digits):
            text += _DIGITS[number & 63]
            number >>= 6
    return text


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _is_supported(hashed: str) -> bool:
    found = _BCRYPT.fullmatch(hashed)
    if found:
        return 4 <= int(found[1]) <= BCRYPT_COST_MAX
    if _SHA.fullmatch(hashed):
        try:
            return len(base64.b64decode(hashed[5:], validate=True)) == hashlib.sha1().digest_size
        except binascii.Error:
            return False
    return _APR1.fullmatch(hashed) is not None
