"""One 32-bit hash per key; its high half picks the segment, its low half the bucket.

At brokers of Pulsar 5.0.0-M1, which have no buckets, the low half picks the segment (`routing`).

The hash is Murmur3 x86 32 with seed 0 over the key's bytes, with all 32 bits kept: the usual Pulsar helper
clears the top bit, and half of the ring would stay empty. This module knows nothing of layouts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import mmh3

from anabranch.errors import LayoutError
from anabranch.model.ranges import FULL, HASH_SLOTS, HashRange

MAX_BUCKETS = 1024
"""Most buckets a segment may have (PIP-486, N_max)."""


def key_hash(key: str | bytes) -> int:
    """Return the raw unsigned hash of a key.

    Text is hashed as UTF-8. Raise UnicodeEncodeError for text that UTF-8 cannot encode.
    """
    # Encode here: the compiled function would end the process if it were given such text.
    return mmh3.hash(key.encode() if isinstance(key, str) else key, 0, False)


def stand_in_hash(producer: str, sequence_id: int) -> int:
    """Return the raw hash of a message without a key; a message sent again gets the same hash."""
    return key_hash(f"{producer}-{sequence_id}")


def segment_hash(raw: int) -> int:
    """Return the slot that picks the segment."""
    return raw >> 16


def bucket_hash(raw: int) -> int:
    """Return the slot that picks the bucket inside a segment."""
    return raw & 0xFFFF


def sticky_hash(key: bytes) -> int:
    """Return the slot of classic Key_Shared dispatch; 0 becomes 1, because 0 means "not set" there."""
    return (mmh3.hash(key, 0, False) & 0xFFFF) or 1


def equal_bucket_splits(count: int) -> tuple[int, ...]:
    """Return the first slots of buckets 1 to count - 1 when all buckets are equally wide."""
    if not 1 <= count <= MAX_BUCKETS:
        raise LayoutError(f"a segment has 1 to {MAX_BUCKETS} buckets, not {count}")
    return tuple(index * HASH_SLOTS // count for index in range(1, count))


def check_bucket_splits(splits: Sequence[int]) -> str | None:
    """Return why these bucket boundaries cannot be used, or None.

    Bucket 0 is at least two slots wide because its stand-in value in dispatch is 1, never 0.
    """
    if len(splits) >= MAX_BUCKETS:
        return f"a segment has at most {MAX_BUCKETS} buckets, not {len(splits) + 1}"
    before = 1
    for split in splits:
        if not before < split < HASH_SLOTS:
            return (
                f"bucket boundaries must ascend and lie between 2 and {HASH_SLOTS - 1}; {split} does not fit"
            )
        before = split
    return None


def bucket_index(splits: Sequence[int], slot: int) -> int:
    """Return the bucket a slot belongs to."""
    return bisect_right(splits, slot)


def bucket_ranges(splits: Sequence[int]) -> tuple[HashRange, ...]:
    """Return all buckets in order; together they cover every slot."""
    return FULL.split(splits) if splits else (FULL,)
