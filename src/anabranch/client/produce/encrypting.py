"""The data key of a producer: made when the producer opens, wrapped for each recipient, and replaced in time.

Entries stay readable inside the producer, because messages of a sealed segment are routed again. An entry is
encrypted each time it is sent.
"""

from __future__ import annotations

import asyncio

from anabranch.aio import TaskRegistry
from anabranch.client.ciphers import encrypting, new_data_key, wrap
from anabranch.client.encryption import Encrypt, EncryptionKeyError, read_key
from anabranch.client.entropy import random_bytes
from anabranch.client.options import PublishOptions, log
from anabranch.protocol.encryption import (
    NONCE_BYTES,
    Cipher,
    WrappedKey,
    encrypted_entry,
    encryption_fields,
    overhead_bytes,
)

RETRY_S = 60.0
"""Pause before the public keys are read again after a failure."""

ENTRIES_MAX = 2**30
"""Entries of one data key; far more with random nonces would weaken AES-GCM."""


class EntryEncryption:
    """Encrypts the entries of one producer."""

    def __init__(self, options: Encrypt, topic: str, tasks: TaskRegistry, timeout_s: float) -> None:
        self._options = options
        self._topic = topic
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._cipher: Cipher | None = None
        """None if entries are sent unencrypted because the public keys could not be read."""
        self._fields = b""
        self._entries_left = 0
        self._renew_at = 0.0
        self._renewing = False

    async def open(self) -> None:
        """Make the first data key; raises EncryptionKeyError unless the policy is to send unencrypted."""
        try:
            await self._make_data_key()
        except EncryptionKeyError as error:
            if self._options.on_failure == "fail":
                raise
            self._renew_at = self._loop.time() + RETRY_S
            log.warning("%s: messages are sent unencrypted: %s", self._topic, error)

    @property
    def overhead(self) -> int:
        """How much larger entries become."""
        return overhead_bytes(self._fields)

    def encrypt(self, entry: bytes) -> bytes:
        """Return the entry as it is sent now."""
        if not self._renewing and (self._entries_left <= 0 or self._loop.time() >= self._renew_at):
            self._renewing = True
            self._tasks.start(self._renew(), f"renew the data key of {self._topic}")
        if self._cipher is None:
            return entry
        self._entries_left -= 1
        return encrypted_entry(entry, self._fields, random_bytes(NONCE_BYTES), self._cipher)

    async def _renew(self) -> None:
        try:
            await self._make_data_key()
        except EncryptionKeyError as error:
            self._renew_at = self._loop.time() + RETRY_S
            self._entries_left = max(self._entries_left, 1)
            state = "messages are sent unencrypted" if self._cipher is None else "the data key stays in use"
            log.warning("%s: %s: %s", self._topic, state, error)
        finally:
            self._renewing = False

    async def _make_data_key(self) -> None:
        data_key, wrapped = new_data_key(), []
        for name in self._options.key_names:
            key = await read_key(self._options.keys, name, {}, self._timeout_s)
            wrapped.append(WrappedKey(name, wrap(key, name, data_key), tuple(key.metadata.items())))
        self._cipher, self._fields = encrypting(data_key), encryption_fields(wrapped)
        self._entries_left = ENTRIES_MAX
        self._renew_at = self._loop.time() + self._options.rotate_after_s


async def opened_encryption(
    options: PublishOptions, topic: str, tasks: TaskRegistry, timeout_s: float
) -> EntryEncryption | None:
    """Return the encryption of a producer that opens; None if its messages stay readable."""
    if options.encryption is None:
        return None
    encryption = EntryEncryption(options.encryption, topic, tasks, timeout_s)
    await encryption.open()
    return encryption
