"""Encrypted entries of a consumer: each waits in its place for its data key, and is decrypted there.

A data key is unwrapped once and remembered. The application chooses the fate of an entry without a key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from anabranch.client.ciphers import decrypting, require_package, unwrap
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.inbox.bad_entries import BadEntryRecord
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.encryption import Decrypt, DecryptionError, EncryptionKeyError, read_key
from anabranch.client.received import Received
from anabranch.errors import AnabranchError
from anabranch.model.ids import MessageId
from anabranch.protocol.chunks import join_chunks
from anabranch.protocol.encryption import (
    Cipher,
    EncryptionContext,
    WrappedKey,
    decrypted_entry,
    encryption_of,
)

DATA_KEYS_MAX = 1000
"""Data keys that a consumer remembers."""

Wrapped = tuple[WrappedKey, ...]


class EntryDecryption:
    """Decrypts the entries of one consumer."""

    def __init__(
        self,
        context: ConsumerContext,
        options: Decrypt,
        bad: BadEntryRecord,
        ready: Callable[[SegmentConsumer], None],
    ) -> None:
        """`ready` is called with a segment whose next entry need not wait any more."""
        self._context, self._options, self._bad, self._ready = context, options, bad, ready
        if options.keys is not None:
            require_package()
        self._ciphers: OrderedDict[Wrapped, Cipher] = OrderedDict()
        """By the wrapped keys that an entry carries, the most recently used last."""
        self._loading: dict[Wrapped, list[SegmentConsumer]] = {}
        """The segments whose next entry waits for a data key."""
        self._failures: dict[Wrapped, str] = {}
        """Why a data key is not known, until an entry has its outcome."""

    def waits(self, source: SegmentConsumer) -> bool:
        """Return whether the next entry of a segment has to wait; the segment is ready again afterwards."""
        entry = source.entries[0]
        if entry.encryption is not None:
            return False
        parts = entry.parts or (entry.data,)
        try:
            contexts = [encryption_of(part) for part in parts]
        except AnabranchError:
            # The inbox finds the same problem when it decodes the entry.
            return False
        found = [context for context in contexts if context is not None]
        if len(found) < len(parts):
            return False
        for context in found:
            if context.wrapped not in self._ciphers:
                return self._without_key(source, entry, context)
        return self._decrypt(source, entry, parts, found)

    def _decrypt(
        self,
        source: SegmentConsumer,
        entry: Received,
        parts: tuple[bytes, ...],
        contexts: list[EncryptionContext],
    ) -> bool:
        plain = []
        try:
            for part, context in zip(parts, contexts, strict=True):
                self._ciphers.move_to_end(context.wrapped)
                plain.append(decrypted_entry(part, self._ciphers[context.wrapped]))
            entry.replace_data(join_chunks(plain) if entry.parts else plain[0])
        except AnabranchError as error:
            return self._fails(source, entry, contexts[-1], str(error))
        return False

    def _without_key(self, source: SegmentConsumer, entry: Received, context: EncryptionContext) -> bool:
        wrapped = context.wrapped
        reason = self._failures.pop(wrapped, None)
        if self._options.keys is None:
            reason = "the consumer has no keys"
        if reason is not None:
            return self._fails(source, entry, context, reason)
        if wrapped not in self._loading:
            self._loading[wrapped] = []
            self._context.tasks.start(self._load(wrapped), f"read a key for {self._context.topic}")
        self._loading[wrapped].append(source)
        return True

    async def _load(self, wrapped: Wrapped) -> None:
        reasons = []
        for key in wrapped:
            try:
                self._remember(wrapped, await self._unwrapped(key))
                break
            except EncryptionKeyError as error:
                reasons.append(str(error))
        else:
            self._failures[wrapped] = "; ".join(reasons)
        for source in self._loading.pop(wrapped):
            if source.entries:
                self._ready(source)

    async def _unwrapped(self, key: WrappedKey) -> bytes:
        assert self._options.keys is not None
        timeout_s = self._context.pool.operation_timeout_s
        private = await read_key(self._options.keys, key.name, dict(key.metadata), timeout_s)
        return unwrap(private, key.name, key.value)

    def _remember(self, wrapped: Wrapped, data_key: bytes) -> None:
        self._ciphers[wrapped] = decrypting(data_key)
        while len(self._ciphers) > DATA_KEYS_MAX:
            self._ciphers.popitem(last=False)

    def _fails(
        self, source: SegmentConsumer, entry: Received, context: EncryptionContext, reason: str
    ) -> bool:
        """Carry out the policy; return whether the entry keeps its place."""
        place = MessageId(entry.source.segment_id, *entry.position)
        topic = self._context.topic
        where = f"{topic}: the entry at {place.segment}/{place.ledger}:{place.entry}"
        error = DecryptionError(f"{where} is not decrypted: {reason}", topic, place)
        if self._options.on_failure == "discard":
            entry.refuse(error)
            return False
        if self._options.on_failure == "consume" and not entry.parts:
            left = entry.keep_encrypted(context)
            source.unhold(entry.position, left)
            source.give_back(left.bit_count())
            return False
        # The entry stays, and the next receive asks for its key again.
        self._bad.to_raise = error
        self._ready(source)
        return True
