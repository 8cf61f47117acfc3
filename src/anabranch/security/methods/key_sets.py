"""Sets of public keys (JSON Web Key Sets), from a file or from an issuer over HTTP.

Keys of an issuer are fetched when the first token needs them, again after a while, and again for a token with
an unknown key id, at a bounded rate. Tokens with known keys never wait for a fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from anabranch.aio import SharedAttempts, mark_retrieved
from anabranch.errors import CredentialsUnavailableError, InvalidConfigurationError
from anabranch.security.methods.token_keys import TokenKey, of_public_key
from anabranch.security.refusals import RefusedCredentialsError

_logger = logging.getLogger(__name__)

KEYS_MAX: Final = 100
RETRY_S: Final = 5.0
"""After a failed fetch, tokens without a known key are refused for this long."""
EXPIRY_FACTOR: Final = 4 / 3
"""As in Pulsar, keys that could not be fetched again stay in use for this much longer."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of a set that can verify tokens, by their ids; a key without an id has the empty one."""

    keys: Mapping[str, TokenKey]

    @classmethod
    def parse(cls, data: bytes) -> KeySet:
        """Read a set; keys of other kinds and uses are left out. Raises InvalidConfigurationError."""
        try:
            found = msgspec.json.decode(data, type=dict[str, Any]).get("keys")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = None
        if not isinstance(found, list):
            raise InvalidConfigurationError("the key set of tokens is not a JSON Web Key Set")
        keys: dict[str, TokenKey] = {}
        for one in found[:KEYS_MAX]:
            key = _key_of(one) if isinstance(one, dict) else None
            if key is not None:
                keys[str(one.get("kid") or "")] = key
        if not keys:
            raise InvalidConfigurationError("the key set of tokens has no public key that can be used")
        return cls(keys)

    def find(self, key_id: str) -> TokenKey | None:
        """Return the key with this id; a token without an id may use the only key of the set."""
        if not key_id and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        return self.keys.get(key_id)


def known_key(keys: KeySet | None, key_id: str, name: str) -> TokenKey:
    """Return the key of a token in a set; raises RefusedCredentialsError."""
    known = keys.find(key_id) if keys is not None else None
    if known is None:
        raise RefusedCredentialsError(f"{name} has no key {key_id[:100]!r}")
    return known


class RemoteKeySet:
    """A key set that is fetched when it is needed."""

    def __init__(
        self, fetch: Callable[[], Awaitable[bytes]], name: str, refresh_s: float, unknown_refresh_s: float
    ) -> None:
        """`fetch` raises CredentialsUnavailableError; `name` is for the log."""
        self._fetch = fetch
        self._name = name
        self._refresh_s = refresh_s
        self._unknown_refresh_s = unknown_refresh_s
        self._set: KeySet | None = None
        self._fetched_at = self._tried_at = -float("inf")
        self._attempts: SharedAttempts[str, None] = SharedAttempts()

    async def find(self, key_id: str) -> TokenKey:
        """Return the key of a token; raises RefusedCredentialsError."""
        age_s = asyncio.get_running_loop().time() - self._fetched_at
        if age_s >= self._refresh_s * EXPIRY_FACTOR:
            self._set = None
        if self._set is None or self._set.find(key_id) is None:
            await self._fetch_within_rate()
        elif age_s >= self._refresh_s and not self._is_fetching and self._may_fetch(RETRY_S):
            # This token does not wait for it; the fetch logs its failure.
            asyncio.ensure_future(self._join()).add_done_callback(mark_retrieved)
        return known_key(self._set, key_id, self._name)

    async def _fetch_within_rate(self) -> None:
        if self._may_fetch(RETRY_S if self._set is None else self._unknown_refresh_s):
            try:
                await self._join()
            except CredentialsUnavailableError as error:
                raise RefusedCredentialsError(str(error), was_checked=False) from None
        elif self._set is None:
            raise RefusedCredentialsError(
                f"the keys of {self._name} could not be fetched a moment ago", was_checked=False
            )

    @property
    def _is_fetching(self) -> bool:
        return bool(list(self._attempts))

    def _may_fetch(self, pause_s: float) -> bool:
        return self._is_fetching or asyncio.get_running_loop().time() - self._tried_at >= pause_s

    async def _join(self) -> None:
        await self._attempts.join("", self._load)

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        self._tried_at = loop.time()
        try:
            self._set = KeySet.parse(await self._fetch())
        except (CredentialsUnavailableError, InvalidConfigurationError) as error:
            _logger.warning("the keys of %s cannot be fetched: %s", self._name, error)
            raise CredentialsUnavailableError(f"{self._name}: {error}") from None
        self._fetched_at = loop.time()


def _key_of(fields: dict[str, Any]) -> TokenKey | None:
    """Return the public key of one element; None for symmetric, private and other keys."""
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm
    from jwt.exceptions import PyJWTError

    readers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "RSA": RSAAlgorithm.from_jwk,
        "EC": ECAlgorithm.from_jwk,
    }
    reader = readers.get(str(fields.get("kty")))
    if reader is None or fields.get("use", "sig") != "sig":
        return None
    algorithm = fields.get("alg")
    try:
        return of_public_key(reader(fields), algorithm if isinstance(algorithm, str) else "")
    except (PyJWTError, InvalidConfigurationError, ValueError, TypeError):
        return None
