"""The secret between control processes, and the id of their control plane, in the metadata store."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Final

from anabranch.errors import NotFoundError, VersionConflictError
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.security.peer_secrets import NONCE_BYTES, SECRET_BYTES, PeerSecrets

SECRET: Final = "/secrets/control"
INSTALLATION: Final = "/installation"


class StoredPeerSecret:
    """The secret as one process has read it."""

    def __init__(self, secret: bytes) -> None:
        self._secrets = PeerSecrets(secret)

    @staticmethod
    async def read(store: MetadataStore) -> StoredPeerSecret:
        """Return the stored secret. The first process creates it."""
        with suppress(VersionConflictError):
            await store.put(SECRET, secrets.token_bytes(SECRET_BYTES), expected=ABSENT)
        found = await store.get(SECRET)
        if found is None:
            raise NotFoundError(f"{SECRET} was removed from the metadata store; start this process again")
        return StoredPeerSecret(found.value)

    def load(self) -> PeerSecrets:
        return self._secrets

    def nonce(self) -> bytes:
        return secrets.token_bytes(NONCE_BYTES)


async def installation_id(store: MetadataStore) -> str:
    """Return the stored id. The first process creates it."""
    with suppress(VersionConflictError):
        await store.put(INSTALLATION, secrets.token_hex(8).encode(), expected=ABSENT)
    found = await store.get(INSTALLATION)
    if found is None:
        raise NotFoundError(f"{INSTALLATION} was removed from the metadata store; start this process again")
    return found.value.decode()
