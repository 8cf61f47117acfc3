"""The key that a batch carries as a sample, from which the broker learns the load of keys. Pure.

Example: two batches of 1,000 messages end with the sequence ids 1,999 and 2,999. The first is sampled at
index 986, the second at index 369.
"""

from __future__ import annotations

SAMPLE_KEY_BYTES_MAX = 256
"""Longest key that a batch carries as a sample."""


def sample_index(sequence_id: int, count: int) -> int:
    """Return the index of the message whose key is the sample, spread by the highest sequence id.

    The first message is not a fair sample: an application that sends its keys in turns may begin every batch
    with the same one.
    """
    return (sequence_id * 0x9E3779B1 >> 7) % count


def sample_key(key: str | bytes | None, first: str | bytes | None) -> bytes | None:
    """Return the key of a sample as the metadata carries it; None if it is the first key, or too long."""
    if key == first:
        return None
    sample = b"" if key is None else key.encode() if isinstance(key, str) else key
    return sample if len(sample) <= SAMPLE_KEY_BYTES_MAX else None
