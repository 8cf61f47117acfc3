"""Reads many headers of the usual shape: optional key, payload size, optional event time, sequence id.

Each header takes a few loads of eight bytes, and masks compare the tags in such a word with the expected
ones. Headers with other fields are left to `message_headers`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anabranch.spark.columns import Bytes, Flags, Numbers
from anabranch.spark.decode.message_headers import EVENT_TIME, KEY, PAYLOAD_SIZE, SEQUENCE

REACH_BYTES = 192
"""How far past the last start a load may reach; the caller pads the bytes by this much."""

_HEAD_MASK = 0x80FF_00FF_FFFF
"""In the first word: the upper bytes of the header's size, the first tag, a key length's top bit."""
_KEYED = KEY << 32
_KEYLESS_MASK = 0x00FF_00FF_FFFF
_KEYLESS = PAYLOAD_SIZE << 32
_TIME_BYTES = 6
"""Bytes of a time in milliseconds between 2004 and 2109; the general reader handles other times."""
_TIME_MASK = 0xFF | sum(0x80 << 8 * at for at in range(1, _TIME_BYTES + 1))
_TIME_WORD = EVENT_TIME | sum(0x80 << 8 * at for at in range(1, _TIME_BYTES))


def _sequence_patterns() -> tuple[Numbers, Numbers]:
    """Return, by size in bytes, the mask and the masked word of a sequence id with its tag.

    A number ends at its first byte without the top bit. Numbers that do not fit into a word have no pattern.
    """
    masks, words = [0] * 10, [1] * 10
    for size in range(2, 9):
        masks[size] = 0xFF | sum(0x80 << 8 * at for at in range(1, size))
        words[size] = SEQUENCE | sum(0x80 << 8 * at for at in range(1, size - 1))
    return np.array(masks, np.uint64).view(np.int64), np.array(words, np.uint64).view(np.int64)


_SEQUENCE_MASKS, _SEQUENCE_WORDS = _sequence_patterns()


class UsualHeaders(NamedTuple):
    """Offsets of the parts of messages; rows with an unusual header have the value end -1."""

    header_ends: Numbers
    value_ends: Numbers
    key_starts: Numbers
    key_ends: Numbers
    no_key: Flags
    event_times: Numbers


def read_usual(data: Bytes, starts: Numbers, total: int) -> UsualHeaders:
    """Read the headers whose sizes are at `starts`; a message that ends after `total` counts as unusual."""
    words: Any = np.ndarray((len(data) - 7,), "<i8", data.data, strides=(1,))
    head = words[starts]
    keyed = (head & _HEAD_MASK) == _KEYED
    key_starts = starts + 6
    key_ends = key_starts + ((head >> 40) & 0x7F)
    no_key = ~keyed
    usual = keyed
    if no_key.any():
        keyless = (head & _KEYLESS_MASK) == _KEYLESS
        key_starts[keyless] -= 2
        key_ends[keyless] = key_starts[keyless]
        usual |= keyless
    header_ends = starts + 4 + ((head >> 24) & 0xFF)

    size_word = words[key_ends]
    usual &= (size_word & 0xFF) == PAYLOAD_SIZE
    sizes = (size_word >> 8) & 0x7F
    after = key_ends + 2
    long = (size_word & 0x8000) != 0
    if long.any():
        # The size has two bytes; the general reader handles one of three.
        sizes[long] |= ((size_word >> 9) & 0x3F80)[long]
        after += long
        usual &= ~long | ((size_word & 0x80_0000) == 0)

    third = words[after]
    event_times = np.zeros(len(starts), np.int64)
    timed = (third & _TIME_MASK) == _TIME_WORD
    if timed.any():
        event_times[timed] = _times_in(third[timed])
        after += timed * (1 + _TIME_BYTES)
        third = words[after]

    usual &= _are_sequences(third, header_ends - after)
    value_ends = header_ends + sizes
    usual &= value_ends <= total
    value_ends[~usual] = -1
    return UsualHeaders(header_ends, value_ends, key_starts, key_ends, no_key, event_times)


def _are_sequences(words: Numbers, sizes: Numbers) -> Flags:
    """Return whether the first bytes of each word, as many as `sizes` says, are exactly one sequence id."""
    known = np.minimum(sizes.view(np.uint64), np.uint64(9)).view(np.int64)
    fitting: Flags = (words & _SEQUENCE_MASKS[known]) == _SEQUENCE_WORDS[known]
    return fitting


def _times_in(words: Numbers) -> Numbers:
    """Return the numbers in the bytes after the first one."""
    times = np.zeros(len(words), np.int64)
    for at in range(_TIME_BYTES):
        times |= (words >> 8 * (at + 1) & 0x7F) << 7 * at
    return times


def last_numbers(data: Bytes, ends: Numbers) -> Numbers:
    """Return the numbers of at most eight bytes that end at `ends`, each preceded by a tag of one byte."""
    numbers = data[ends - 1].astype(np.int64)
    rows = np.arange(len(ends))
    for back in range(2, 10):
        low = data[ends[rows] - back]
        more = low >= 0x80
        rows = rows[more]
        if len(rows) == 0:
            break
        numbers[rows] = numbers[rows] << 7 | low[more] & 0x7F
    return numbers
