"""The method `basic`: a user and a password, compared with a file of hashes.

Hashes are made in threads, few at a time, and each address has few under way and few failures, so guessing
delays no other client for long. A password that was right is remembered by a keyed digest, so that not every
HTTP request of a client pays for a hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from anabranch.rights.callers import Caller
from anabranch.security.attempts import Attempts, network_of
from anabranch.security.authentication import Shown
from anabranch.security.methods import htpasswd
from anabranch.security.outside import Outside
from anabranch.security.refusals import RefusedCredentialsError

METHOD: Final = "basic"
CREDENTIALS_BYTES_MAX: Final = 2048
KNOWN_MAX: Final = 1000
HASHES_AT_ONCE: Final = 2
HASHES_MAX: Final = 64
"""Hashes that are being made or wait; more attempts are refused at once."""
HASHES_OF_ADDRESS_MAX: Final = 4


class Users(NamedTuple):
    """All users of a file."""

    hashes: Mapping[str, str]
    decoy: str
    """The costliest hash; comparing with it makes an unknown user cost as much as a known one."""

    @classmethod
    def parse(cls, data: bytes) -> Users:
        hashes = htpasswd.parse(data)
        return cls(hashes, max(hashes.values(), key=htpasswd.cost_of, default=htpasswd.sha(b"")))


class PasswordAuthentication:
    """Compares passwords with the hashes of a file."""

    def __init__(self, users: Callable[[], Users], outside: Outside, attempts: Attempts) -> None:
        self._users = users
        self._outside = outside
        self._attempts = attempts
        self._digest_key = outside.random_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._hashing = asyncio.Semaphore(HASHES_AT_ONCE)
        self._under_way: Counter[str] = Counter()

    async def authenticate(self, shown: Shown) -> Caller:
        user, password = _split(shown.credentials)
        users = self._users()
        hashed = users.hashes.get(user)
        digest = self._digest(user, password, hashed or "")
        if hashed is None or digest not in self._known:
            right = await self._compare(shown.address, password, hashed or users.decoy)
            if hashed is None:
                # The text may be a password that was typed into the wrong field.
                raise RefusedCredentialsError("the user is unknown")
            if not right:
                raise RefusedCredentialsError(f"the password of {user} is wrong")
        self._remember(digest)
        return Caller(user, method=METHOD)

    async def _compare(self, address: str, password: bytes, hashed: str) -> bool:
        if self._attempts.is_exhausted(address):
            raise RefusedCredentialsError("the address has failed too often lately", was_checked=False)
        network = network_of(address)
        if self._under_way.total() >= HASHES_MAX or self._under_way[network] >= HASHES_OF_ADDRESS_MAX:
            raise RefusedCredentialsError("too many passwords are being compared", was_checked=False)
        self._under_way[network] += 1
        try:
            async with self._hashing:
                return await self._outside.run_aside(partial(htpasswd.matches, password, hashed))
        finally:
            self._under_way[network] -= 1
            if not self._under_way[network]:
                del self._under_way[network]

    def _remember(self, digest: bytes) -> None:
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _digest(self, user: str, password: bytes, hashed: str) -> bytes:
        text = b"\0".join((user.encode(), hashed.encode(), password))
        return hmac.digest(self._digest_key, text, hashlib.sha256)


def _split(credentials: bytes) -> tuple[str, bytes]:
    if len(credentials) > CREDENTIALS_BYTES_MAX:
        raise RefusedCredentialsError(f"user and password have {len(credentials)} bytes")
    user, colon, password = credentials.partition(b":")
    if not colon:
        raise RefusedCredentialsError("the credentials are not user:password")
    try:
        return user.decode(), password
    except UnicodeDecodeError:
        raise RefusedCredentialsError("the user is not UTF-8") from None
