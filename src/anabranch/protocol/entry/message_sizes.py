"""The sizes of all messages of a batch, which Anabranch producers write into the metadata of the entry.

Without them a reader has to read the header of each message to find the next message. Sizes that do not fit
the payload are ignored: the reader then follows the headers, as it does in entries of other producers.

Only headers of the usual shape count: an optional key of less than 128 bytes, which is not Base64, the size
of the value, and a sequence id.

The bytes are: the number of bytes of a value's size (0: one size of four bytes for all values), the header
size of each message, and the sizes of the values, lowest byte first.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

BYTES_MAX: Final = 3072
"""Larger sizes are not written: an entry leaves 4 KiB of room for its metadata."""

MESSAGES_MIN: Final = 4
"""Fewer messages are found as fast by their headers."""

_HEADER_MIN: Final = 4
_HEADER_MAX: Final = 134
"""A header with a key of 128 bytes has one byte more, and its length takes two bytes."""

_USUAL_HEADERS: Final = bytes(range(_HEADER_MIN, _HEADER_MAX + 1))

_HEAD_BYTES: Final = bytes((size + 4) & 0xFF for size in range(0x100))
"""The bytes before a value: the size of the header, in four bytes, and the header."""

_CODES: Final = {1: "B", 2: "H", 4: "I"}


class MessagePlaces(NamedTuple):
    """Offsets of the messages of a batch in its payload: of each message, of its value, and of its end."""

    starts: list[int]
    values: list[int]
    ends: list[int]


def encode_sizes(headers: bytes, values: Sequence[int] | int) -> bytes | None:
    """Return the sizes of headers and of values, or the size of all values, as they are stored.

    Return None if a size is unusual.
    """
    if len(headers) < MESSAGES_MIN or max(headers) > _HEADER_MAX:
        return None
    if not isinstance(values, int) and len(set(values)) == 1:
        values = values[0]
    if isinstance(values, int):
        found = b"\0%b%b" % (headers, values.to_bytes(4, "little"))
    else:
        largest = max(values)
        width = 1 if largest < 2**8 else 2 if largest < 2**16 else 4
        found = b"%c%b%b" % (width, headers, _in_order(array(_CODES[width], values)).tobytes())
    return found if len(found) <= BYTES_MAX else None


def find_messages(sizes: bytes, count: int, payload: bytes, start: int) -> MessagePlaces | None:
    """Return the messages of a payload from `start` to its end; None if the sizes do not fit the payload."""
    headers = sizes[1 : count + 1] if count > 0 else b""
    if not headers or len(headers) != count or headers.translate(None, _USUAL_HEADERS):
        return None
    values = _value_sizes(sizes, count)
    if values is None:
        return None
    parts = [0] * (2 * count)
    parts[::2] = headers.translate(_HEAD_BYTES)
    parts[1::2] = values
    bounds = list(accumulate(parts, initial=start))
    if bounds[-1] != len(payload):
        return None
    starts = bounds[:-1:2]
    # The fourth byte of each message is the size of its header. A single message never fits, and is walked.
    if bytes(itemgetter(*starts)(memoryview(payload)[3:])) != headers:
        return None
    return MessagePlaces(starts, bounds[1::2], bounds[2::2])


def _value_sizes(sizes: bytes, count: int) -> Sequence[int] | None:
    width, data = sizes[0], sizes[count + 1 :]
    if width == 0:
        return [int.from_bytes(data, "little")] * count if len(data) == 4 else None
    if width not in _CODES or len(data) != width * count:
        return None
    found = array(_CODES[width])
    found.frombytes(data)
    return _in_order(found)


def _in_order(sizes: array[int]) -> array[int]:
    if sys.byteorder == "big":
        sizes.byteswap()
    return sizes
