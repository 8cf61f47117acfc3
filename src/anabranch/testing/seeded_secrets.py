"""Secrets between the brokers of one cluster that are drawn from a seed and kept in memory."""

from __future__ import annotations

import random

from anabranch.security.peer_secrets import NONCE_BYTES, SECRET_BYTES, PeerSecrets


class SeededSecrets:
    """Secrets in memory, which all brokers of a cluster share."""

    def __init__(self, rng: random.Random) -> None:
        self.secrets = PeerSecrets(rng.randbytes(SECRET_BYTES))
        self._rng = rng

    def load(self) -> PeerSecrets:
        return self.secrets

    def nonce(self) -> bytes:
        return self._rng.randbytes(NONCE_BYTES)
