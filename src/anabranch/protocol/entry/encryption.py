"""Encrypted entries, as Pulsar's clients write them: the payload is encrypted, the metadata stays readable.

A producer encrypts payloads with a data key of its own by AES-256-GCM. Each entry carries that data key,
wrapped for every recipient. The ciphers themselves are arguments here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from anabranch.errors import NotAllowedError
from anabranch.protocol.entry.columns import Columns
from anabranch.protocol.entry.entries import checked_metadata, columns_of_single
from anabranch.protocol.entry.restamping import entry_metadata
from anabranch.protocol.frames import build_entry, metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.varints import encode_varint

ALGORITHM: Final = "AES/GCM/NoPadding"
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
_NONCE_TAG: Final = b"\x7a"
_FIELDS: Final = ("encryption_keys", "encryption_algo", "encryption_param")

Cipher = Callable[[bytes, bytes], bytes]
"""Encrypts or decrypts a payload; the first argument is the nonce."""


class EncryptionRequiredError(NotAllowedError):
    """The topic takes only encrypted messages, and the producer has no encryption key."""


class WrappedKey(NamedTuple):
    """A data key, encrypted for the holder of one key."""

    name: str
    value: bytes
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EncryptionContext:
    """All that a holder of a private key needs to decrypt the bytes of a message that is still encrypted.

    The bytes are the payload of a whole entry. Decrypted, they are compressed as `compression` says, and hold
    `batch_size` messages; 0 means one message outside a batch.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            consumer = client.subscribe_queue("vault", "relay", encryption=Decrypt(on_failure="consume"))
            for message in consumer.receive_many(100, timeout=0.1):
                context: EncryptionContext | None = message.encryption
                print("readable" if context is None else context.keys)
    """

    keys: Mapping[str, bytes]
    """The wrapped data key by the name of each recipient's key."""
    nonce: bytes
    algorithm: str
    compression: str
    """The name of the codec, such as LZ4 or NONE."""
    uncompressed_size: int
    batch_size: int
    wrapped: tuple[WrappedKey, ...] = field(default=(), repr=False)


def encryption_fields(keys: Iterable[WrappedKey]) -> bytes:
    """Return the part of an entry's metadata that is the same for all entries of a data key."""
    metadata = pb.MessageMetadata(encryption_algo=ALGORITHM)
    for key in keys:
        one = metadata.encryption_keys.add(key=key.name, value=key.value)
        for name, value in key.metadata:
            one.metadata.add(key=name, value=value)
    return metadata.SerializePartialToString()


def overhead_bytes(fields: bytes) -> int:
    """Return how much larger an encrypted entry is."""
    return len(fields) + len(_NONCE_TAG) + 1 + NONCE_BYTES + TAG_BYTES


def encrypted_entry(entry: bytes, fields: bytes, nonce: bytes, encrypt: Cipher) -> bytes:
    """Return the entry with an encrypted payload; `fields` and `encrypt` belong to one data key."""
    _, end = metadata_span(entry)
    metadata = entry_metadata(entry)
    # The sizes of the messages would tell other readers something about their content.
    metadata.ClearField("message_sizes")
    # Protobuf fields may come in any order.
    head = metadata.SerializeToString() + fields + _NONCE_TAG + encode_varint(len(nonce)) + nonce
    return build_entry(head, encrypt(nonce, entry[end:]))


def encryption_of(entry: bytes) -> EncryptionContext | None:
    """Return how an entry is encrypted; None for a readable one. Raises ChecksumError or CorruptDataError."""
    metadata, _ = checked_metadata(entry)
    if not metadata.encryption_keys:
        return None
    wrapped = tuple(
        WrappedKey(key.key, key.value, tuple((pair.key, pair.value) for pair in key.metadata))
        for key in metadata.encryption_keys
    )
    return EncryptionContext(
        keys={key.name: key.value for key in wrapped},
        nonce=metadata.encryption_param,
        algorithm=metadata.encryption_algo,
        compression=pb.CompressionType.Name(metadata.compression),
        uncompressed_size=metadata.uncompressed_size,
        batch_size=metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0,
        wrapped=wrapped,
    )


def decrypted_entry(entry: bytes, decrypt: Cipher) -> bytes:
    """Return the entry as it was before `encrypted_entry`; raises the error of the cipher."""
    metadata, end = checked_metadata(entry)
    payload = decrypt(metadata.encryption_param, entry[end:])
    for name in _FIELDS:
        metadata.ClearField(name)
    return build_entry(metadata.SerializeToString(), payload)


def encrypted_columns(entry: bytes) -> Columns:
    """Return the whole encrypted payload as the value of one message, with the key of the entry."""
    metadata, end = checked_metadata(entry)
    return columns_of_single(metadata, entry[end:])
