"""The ciphers of end-to-end encryption, by the package cryptography, which is imported when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from anabranch.client.encryption import DecryptionError, EncryptionKey, EncryptionKeyError
from anabranch.client.entropy import random_bytes
from anabranch.errors import InvalidConfigurationError
from anabranch.protocol.encryption import Cipher

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.padding import OAEP

DATA_KEY_BITS: Final = 256
RSA_BITS_MIN: Final = 2048


def new_data_key() -> bytes:
    return random_bytes(DATA_KEY_BITS // 8)


def encrypting(data_key: bytes) -> Cipher:
    """Encrypts payloads; a nonce must be used once for a data key."""
    cipher = _aes_gcm(data_key)
    return lambda nonce, payload: cipher.encrypt(nonce, payload, None)


def decrypting(data_key: bytes) -> Cipher:
    """Decrypts payloads; raises DecryptionError for any other key, nonce or bytes."""
    cipher = _aes_gcm(data_key)

    def decrypt(nonce: bytes, payload: bytes) -> bytes:
        try:
            return bytes(cipher.decrypt(nonce, payload, None))
        except Exception as error:
            raise DecryptionError("the payload does not match its data key") from error

    return decrypt


def _aes_gcm(data_key: bytes) -> Any:
    require_package()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(data_key)


def wrap(key: EncryptionKey, name: str, data_key: bytes) -> bytes:
    """The data key, encrypted with a public key; raises EncryptionKeyError."""
    require_package()
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public = load_pem_public_key(key.pem)
    except Exception as error:
        raise EncryptionKeyError(f"the key {name} is not a public key in PEM form") from error
    if not isinstance(public, RSAPublicKey) or public.key_size < RSA_BITS_MIN:
        raise EncryptionKeyError(f"the key {name} must be an RSA key of at least {RSA_BITS_MIN} bits")
    return public.encrypt(data_key, _oaep())


def unwrap(key: EncryptionKey, name: str, wrapped: bytes) -> bytes:
    """The data key that `wrap` encrypted; raises EncryptionKeyError."""
    require_package()
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.pem, None)
    except Exception as error:
        raise EncryptionKeyError(
            f"the key {name} is not a private key in PEM form without a password"
        ) from error
    if not isinstance(private, RSAPrivateKey):
        raise EncryptionKeyError(f"the key {name} must be an RSA key")
    try:
        data_key = private.decrypt(wrapped, _oaep())
    except ValueError as error:
        raise EncryptionKeyError(f"the key {name} does not open this data key") from error
    if len(data_key) * 8 != DATA_KEY_BITS:
        raise EncryptionKeyError(f"the data key for {name} has {len(data_key)} bytes")
    return data_key


def _oaep() -> OAEP:
    """The padding of Pulsar's clients."""
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
    from cryptography.hazmat.primitives.hashes import SHA1

    return OAEP(MGF1(SHA1()), SHA1(), None)


def require_package() -> None:
    """Raise InvalidConfigurationError where the package is not installed."""
    try:
        import cryptography as _  # noqa: F401
    except ImportError as error:
        raise InvalidConfigurationError(
            "encryption needs the package cryptography: pip install 'anabranch[encryption]'"
        ) from error
