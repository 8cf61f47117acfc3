"""The key that a batch carries as a sample of its messages, from which the broker learns the load of keys."""

from __future__ import annotations

SAMPLE_KEY_BYTES_MAX = 256
"""Longest key that a batch carries as a sample."""


def sample_index(sequence_id: int, count: int) -> int:
    """The message of a batch whose key is its sample, chosen as if at random by the highest sequence id.

    The first message is no fair sample: an application that sends its keys in turns may begin every batch
    with the same one.
    """
    return (sequence_id * 0x9E3779B1 >> 7) % count


def sample_key(key: str | bytes | None, first: str | bytes | None) -> bytes | None:
    """The key of a sample as the metadata carries it; None if it is the first key, or too long."""
    if key == first:
        return None
    sample = b"" if key is None else key.encode() if isinstance(key, str) else key
    return sample if len(sample) <= SAMPLE_KEY_BYTES_MAX else None
