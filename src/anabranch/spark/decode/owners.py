"""Decides by key hashes which task reads a message, whole columns at once."""

from __future__ import annotations

from base64 import b64decode

import numpy as np
import pyarrow as pa

from anabranch.model.ranges import HashRange
from anabranch.spark.columns import Flags, Words, hash_column, hash_spans
from anabranch.spark.decode.spans import Spans


def in_ranges(slots: Words, whole: HashRange, keep: tuple[HashRange, ...]) -> Flags:
    """Return whether each message has its slot in one of the ranges.

    A message without a key, or one that another rule put there, may have a slot outside of the `whole` range.
    The nearest slot inside counts then, because each message belongs to exactly one task.
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
