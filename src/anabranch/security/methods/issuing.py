"""Makes keys and tokens, for users without an issuer of tokens and for tests of brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from anabranch.errors import InvalidConfigurationError
from anabranch.security.methods.token_keys import (
    CURVES,
    HMAC_BYTES,
    RSA_ALGORITHMS,
    RSA_BITS_MIN,
    TokenKey,
    of_public_key,
    secret_key,
)

_BITS: Final = {"RS256": RSA_BITS_MIN, "RS384": 3072, "RS512": 4096}


class SigningKey(NamedTuple):
    """A secret or private key, and the algorithms that it may use."""

    key: Any
    algorithms: tuple[str, ...]


class KeyPair(NamedTuple):
    """The bytes of a private and of its public key."""

    private: bytes
    public: bytes


def signing_secret(data: bytes) -> SigningKey:
    """Return the key of a secret; raises InvalidConfigurationError for a weak one."""
    found: TokenKey = secret_key(data)
    return SigningKey(found.key, found.algorithms)


def signing_private_key(data: bytes) -> SigningKey:
    """Return a private key of RSA or an elliptic curve, PEM or DER; raises InvalidConfigurationError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        if b"-----BEGIN" in data:
            key: Any = serialization.load_pem_private_key(data, None)
        else:
            key = serialization.load_der_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidConfigurationError(
            "the private key cannot be read; it must be an unencrypted PEM or DER file (PKCS #8)"
        ) from None
    return SigningKey(key, of_public_key(key.public_key()).algorithms)


def sign(
    claims: Mapping[str, Any], key: SigningKey, algorithm: str | None = None, key_id: str | None = None
) -> str:
    """Return a token with these claims.

    Raise InvalidConfigurationError if the algorithm does not fit the key.
    """
    import jwt

    if algorithm is not None and algorithm not in key.algorithms:
        raise InvalidConfigurationError(f"the key fits {', '.join(key.algorithms)}, not {algorithm!r}")
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(dict(claims), key.key, algorithm=algorithm or key.algorithms[0], headers=headers)


def secret_bytes_of(algorithm: str) -> int:
    """Return the length of a new secret for an algorithm."""
    return HMAC_BYTES[algorithm]


def make_key_pair(algorithm: str, *, pem: bool = False) -> KeyPair:
    """Return a new key pair for an algorithm, as PKCS #8 and X.509."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    key: Any
    if algorithm in RSA_ALGORITHMS:
        key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS[algorithm])
    else:
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        assert set(curves) == set(CURVES.values())
        key = ec.generate_private_key(curves[algorithm])
    encoding = serialization.Encoding.PEM if pem else serialization.Encoding.DER
    return KeyPair(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo),
    )
