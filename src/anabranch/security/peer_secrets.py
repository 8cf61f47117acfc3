"""The secret that the brokers of one cluster share, and the proof that a broker knows it.

The secret itself never crosses the wire. Both brokers contribute a nonce, and each proves that it knows the
secret with a code over both nonces, so a proof that was overheard is worth nothing on another connection:

    CONNECT         key id, nonce of the dialing broker
    AUTH_CHALLENGE  nonce of the accepting broker, its proof
    AUTH_RESPONSE   proof of the dialing broker

This module is pure; `peer_secret_file` keeps the secrets.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Protocol

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32
KEY_ID_BYTES: Final = 16
PROOF_BYTES: Final = 32


@dataclass(frozen=True, slots=True, repr=False)
class PeerSecrets:
    """The secret of a cluster, and the one before it while a rotation lasts."""

    current: bytes
    previous: bytes = b""
    previous_until_s: float = 0.0
    """When the previous secret ends, in seconds of the wall clock."""

    def accepted(self, now_s: float) -> list[bytes]:
        """Return the secrets that a broker may prove at this time."""
        return [self.current, *([self.previous] if self.previous and now_s < self.previous_until_s else [])]

    def find(self, key_id: bytes, now_s: float) -> bytes | None:
        """Return the accepted secret with this id."""
        return next((one for one in self.accepted(now_s) if key_id_of(one) == key_id), None)


class SecretSource(Protocol):
    """Gives brokers the secrets of their cluster, and randomness for nonces."""

    def load(self) -> PeerSecrets:
        """Return the secrets as they are now; raises InvalidConfigurationError if they cannot be used."""

    def nonce(self) -> bytes:
        """Return bytes that were never used before."""


def key_id_of(secret: bytes) -> bytes:
    """Names a secret without revealing it."""
    return hashlib.sha256(b"anabranch peer key id" + secret).digest()[:KEY_ID_BYTES]


def dialing_proof(secret: bytes, ours: bytes, theirs: bytes) -> bytes:
    """Return the proof of the dialing broker, over its own nonce and that of the accepting broker."""
    return hmac.digest(secret, b"anabranch peer dials" + ours + theirs, "sha256")


def accepting_proof(secret: bytes, ours: bytes, theirs: bytes) -> bytes:
    """Return the proof of the accepting broker, over its own nonce and that of the dialing broker."""
    return hmac.digest(secret, b"anabranch peer accepts" + theirs + ours, "sha256")
