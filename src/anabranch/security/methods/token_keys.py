"""The keys that verify tokens, and the algorithms that each key allows.

The kind of the key alone decides the algorithms: a token cannot choose another one, so the public key of an
issuer is never taken for a secret.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

from anabranch.errors import InvalidConfigurationError

SECRET_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2048

HMAC_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The fewest bytes of the secret for each algorithm (RFC 7518, section 3.2)."""
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, slots=True, repr=False)
class TokenKey:
    """A secret or public key with the algorithms that it may verify."""

    key: Any
    algorithms: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TokenKey({', '.join(self.algorithms)})"


def secret_key(data: bytes) -> TokenKey:
    """Return the key of a shared secret; raises InvalidConfigurationError for a weak or mistaken one."""
    if b"-----BEGIN" in data:
        raise InvalidConfigurationError(
            "the secret key of tokens is a PEM file; set token_public_key to a public key instead"
        )
    if len(data) < SECRET_BYTES_MIN:
        raise InvalidConfigurationError(
            f"the secret key of tokens has {len(data)} bytes and needs at least {SECRET_BYTES_MIN}; "
            "make one with `anabranch token create-secret-key`"
        )
    return TokenKey(data, tuple(name for name, least in HMAC_BYTES.items() if len(data) >= least))


def public_key(data: bytes, algorithm: str = "") -> TokenKey:
    """Return a public key of RSA or an elliptic curve, from PEM, DER or base64 of DER.

    If an algorithm is given, the key verifies no other.
    """
    return of_public_key(_load_public(data), algorithm)


def of_public_key(key: Any, algorithm: str = "") -> TokenKey:
    """Return the token key of a key object of `cryptography`."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise InvalidConfigurationError(
                f"the public key of tokens has {key.key_size} bits and needs at least {RSA_BITS_MIN}"
            )
        fitting: tuple[str, ...] = RSA_ALGORITHMS
    elif isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        fitting = (CURVES[key.curve.name],)
    else:
        raise InvalidConfigurationError(
            f"the public key of tokens is of a kind that is not supported; use RSA or {', '.join(CURVES)}"
        )
    if not algorithm:
        return TokenKey(key, fitting)
    if algorithm not in fitting:
        raise InvalidConfigurationError(
            f"the public key of tokens fits {', '.join(fitting)}, not {algorithm!r} of token_public_algorithm"
        )
    return TokenKey(key, (algorithm,))


def _load_public(data: bytes) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    if b"PRIVATE KEY-----" in data:
        raise InvalidConfigurationError(
            "token_public_key is a private key; the broker needs the public key alone"
        )
    try:
        if b"-----BEGIN" in data:
            return serialization.load_pem_public_key(data)
        return serialization.load_der_public_key(from_base64(data))
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidConfigurationError(
            "the public key of tokens cannot be read; it must be a PEM or DER public key (X.509)"
        ) from None


def from_base64(data: bytes) -> bytes:
    """Return the bytes behind base64 text; other bytes as they are."""
    try:
        return base64.b64decode(b"".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return data
