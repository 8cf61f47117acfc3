"""The secret that the brokers of one cluster share, and no client knows."""

from __future__ import annotations

import hmac
import random
from contextlib import suppress
from typing import Final

from anabranch.errors import VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore

SECRET_PATH: Final = "/secrets/brokers"
SECRET_BYTES: Final = 32


class ClusterSecret:
    """Kept in the metadata store; the first broker of the cluster makes it."""

    def __init__(self, store: MetadataStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._value = b""

    @property
    def value(self) -> bytes:
        """Empty until the secret is loaded."""
        return self._value

    async def load(self) -> None:
        with suppress(VersionConflictError):
            await self._store.put(SECRET_PATH, self._rng.randbytes(SECRET_BYTES), expected=ABSENT)
        found = await self._store.get(SECRET_PATH)
        assert found is not None
        self._value = found.value

    def matches(self, shown: bytes) -> bool:
        """Whether a peer showed the secret; never before it is loaded."""
        return bool(self._value) and hmac.compare_digest(shown, self._value)
