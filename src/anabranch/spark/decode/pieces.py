"""The part of a stored entry that a task reads: which messages belong to it, and a fast way to copy them.

A message belongs to exactly one task. Tasks of a strand share its slices and divide the keys by hash: by the
high half of the key hash (the slot) if several segments are read one after the other, by the low half (the
bucket hash) if a single segment is divided. Whole columns are tested at once. This module must not know the
schema of a query.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from anabranch.model.ranges import FULL, HashRange
from anabranch.spark.columns import Flags, Words, hash_column, hash_spans
from anabranch.spark.decide.source.topology import Slice
from anabranch.spark.decode.entries import Payload
from anabranch.spark.decode.spans import Spans
from anabranch.speedups import copy_messages


class EntryPiece(NamedTuple):
    """The rows of one entry that belong to a slice."""

    payload: Payload
    first: int
    """Position of the first message of the entry."""
    part: Slice
    keep: tuple[HashRange, ...] | None

    @property
    def skip(self) -> int:
        """Number of messages of the entry before the slice."""
        return max(0, self.part.lo - self.first)

    @property
    def take(self) -> int:
        """Number of messages of the entry in the slice."""
        return min(self.part.hi - self.first, self.payload.count) - self.skip

    @property
    def is_cut(self) -> bool:
        """Whether the slice begins or ends inside the entry."""
        return self.skip > 0 or self.take < self.payload.count

    @property
    def is_whole(self) -> bool:
        """Whether all messages of the entry belong to the task, so that no key has to be hashed."""
        wanted, stamped = self.part.bucket_hashes, self.payload.bucket_hashes
        inside = (
            stamped is not None and wanted is not None and stamped.start in wanted and stamped.end in wanted
        )
        return self.keep is None and (wanted is None or inside)

    def owns(self, hashes: Words) -> Flags:
        """Return which messages belong to the task, by their key hashes."""
        owned = np.ones(len(hashes), np.bool_)
        if self.keep is not None:
            owned &= in_ranges(hashes >> np.uint32(16), self.part.range, self.keep)
        if self.part.bucket_hashes is not None:
            stamped = self.payload.bucket_hashes or FULL
            owned &= in_ranges(hashes & np.uint32(0xFFFF), stamped, (self.part.bucket_hashes,))
        return owned


class Copied(NamedTuple):
    """The keys and values of all messages of some pieces, as columns."""

    keys: Any
    values: Any


def copied(pieces: Sequence[EntryPiece]) -> Copied | None:
    """Return keys and values if all messages belong to the task and have headers of the usual shape.

    Otherwise, or if the compiled function is missing, return None; `spans` handles every form.
    """
    if copy_messages is None or not all(piece.is_whole and not piece.is_cut for piece in pieces):
        return None
    counts = [piece.payload.count for piece in pieces]
    payloads = [piece.payload.data for piece in pieces]
    rows, room = sum(counts), sum(map(len, payloads))
    if room >= 2**31 or rows > room:
        return None
    key_offsets, value_offsets = np.empty(rows + 1, np.int32), np.empty(rows + 1, np.int32)
    keys, values = np.empty(room, np.uint8), np.empty(room, np.uint8)
    valid = np.zeros((rows + 7) // 8, np.uint8)
    used = copy_messages(payloads, counts, key_offsets, keys, valid, value_offsets, values)
    if used is None:
        return None
    key_bytes, value_bytes, missing = used
    return Copied(
        _column(rows, pa.py_buffer(valid) if missing else None, key_offsets, keys[:key_bytes]),
        _column(rows, None, value_offsets, values[:value_bytes]),
    )


def _column(rows: int, valid: Any, offsets: Any, content: Any) -> Any:
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def in_ranges(slots: Words, whole: HashRange, keep: tuple[HashRange, ...]) -> Flags:
    """Return whether each message has its slot in one of the ranges.

    A message without a key, or one that was routed by another rule, may have a slot outside the `whole`
    range. Then the nearest slot inside counts, so that the message still belongs to exactly one task.
    """
    slots = slots.clip(whole.start, whole.end)
    kept = np.zeros(len(slots), np.bool_)
    for part in keep:
        kept |= (slots >= part.start) & (slots <= part.end)
    return kept


def key_hashes(spans: Spans) -> Words:
    starts, ends = spans.key_starts, spans.key_ends
    hashes = hash_spans(spans.data, starts, ends - starts)
    encoded = np.flatnonzero(spans.encoded_key)
    if len(encoded):
        decoded = [decoded_key(spans.raw[starts[row] : ends[row]]) for row in encoded.tolist()]
        hashes[encoded] = hash_column(pa.array(decoded, pa.binary()))
    hashes[spans.no_key] = 0
    return hashes


def decoded_key(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return text
