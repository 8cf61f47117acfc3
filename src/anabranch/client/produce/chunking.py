"""The entries that a producer sends for a batch: encrypted if it encrypts, and cut into chunks if need be."""

from __future__ import annotations

from anabranch.client.decide.outgoing import Outgoing
from anabranch.client.options import PublishOptions
from anabranch.client.produce.encrypting import EntryEncryption
from anabranch.errors import MessageTooBigError
from anabranch.protocol.chunks import split_entry


def is_batched(options: PublishOptions, batch: Outgoing) -> bool:
    """Whether the entry of these messages is a batch; a single message that may be split is not."""
    return options.batching is not False and not (options.chunking and len(batch.rows) == 1)


def entries_of(
    options: PublishOptions, batch: Outgoing, limit: int, encryption: EntryEncryption | None = None
) -> list[bytes]:
    """The entry, or its chunks if it is too large; raises MessageTooBigError if it cannot be split."""
    if encryption is None:
        return _cut(options, batch, limit)
    # Each chunk is encrypted by itself, as consumers of Pulsar expect it.
    return [encryption.encrypt(entry) for entry in _cut(options, batch, limit - encryption.overhead)]


def _cut(options: PublishOptions, batch: Outgoing, limit: int) -> list[bytes]:
    if batch.size <= limit:
        return [batch.entry]
    if batch.batched or not options.chunking:
        raise MessageTooBigError(
            f"a batch of {batch.count} messages came to {batch.size} bytes and the broker takes up "
            f"to {limit}; choose a smaller max_bytes for batching"
        )
    chunks = split_entry(batch.entry, limit)
    batch.unanswered_chunks = len(chunks)
    return chunks
