"""Packs the place of a message on Apache Pulsar (ledger, entry and batch index) into one position. Pure.

Pulsar does not count the messages of a topic. Its places are ordered, but their distance says nothing. One
number of 63 bits stands for a place, so that cuts, slices and the column `position` have the same form for
both kinds of brokers. The order of the numbers is the order of the places:

    2 bits  width of the ledger id      15, 21, 27 or 33 bits
            ledger id
    2 bits  width of the entry id       10, 16, 22 or 28 bits
            entry id
            batch index, in the remaining bits

A larger width begins with a larger number, which keeps the order. Small numbers leave more room for the
others: ledger 100,000,000 with 50,000 entries leaves 16 bits, which is 65,536 messages per entry. Any number
between two places is a valid end of a slice.

Example: place 5:10:3 is position 352015519580163, and place 5:11:0 is 352032699449344: the difference says
nothing about the messages between them. With 20 messages per entry, places 5:10 and 5:14 are about 80
messages apart, and the position 50 messages after 5:10 is 5:13, the start of the entry behind the 50th
message.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from anabranch.errors import InvalidConfigurationError, UnsupportedFeatureError

_BITS = 63
_LEDGER_BITS = (15, 21, 27, 33)
_ENTRY_BITS = (10, 16, 22, 28)
_CLASS_BITS = 2

LEDGER_ENTRIES = 50_000
"""Assumed entries of a ledger: Pulsar's default limit. Brokers do not tell how many an old ledger has."""


class MessagePlace(NamedTuple):
    """The place at which Pulsar stores a message."""

    ledger: int
    entry: int
    batch: int = 0
    """Index of the message in its entry."""

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.batch}"


def position_of(place: MessagePlace) -> int:
    """Return the position of a place; raises UnsupportedFeatureError if it does not fit 63 bits."""
    entry_at, batch_bits = _entry_code(place.ledger, place.entry)
    if place.batch >> batch_bits:
        raise _too_large(place)
    return (entry_at << batch_bits) + place.batch


def place_of(position: int) -> MessagePlace:
    """Return the place of a position. A number between two positions gives a place between theirs."""
    ledger_bits = _LEDGER_BITS[position >> (_BITS - _CLASS_BITS)]
    left = _BITS - _CLASS_BITS - ledger_bits
    ledger = position >> left & (1 << ledger_bits) - 1
    entry_bits = _ENTRY_BITS[position >> (left - _CLASS_BITS) & (1 << _CLASS_BITS) - 1]
    left -= _CLASS_BITS + entry_bits
    if left < 0:
        # No message has such a position; only a cut that a user wrote does.
        raise InvalidConfigurationError(f"{position} is not the position of a message on Pulsar")
    return MessagePlace(ledger, position >> left & (1 << entry_bits) - 1, position & (1 << left) - 1)


def parse_place(text: str) -> int:
    """Parse a place as Pulsar's tools write it, ledger:entry or ledger:entry:batch, into a position."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidConfigurationError(f"{text!r} is not a place; write ledger:entry or ledger:entry:batch")
    return position_of(MessagePlace(*map(int, parts)))


def rows_between(lo: int, hi: int, per_entry: float) -> int:
    """Estimate the messages from one position up to another; at least 1 unless the range is empty."""
    if lo >= hi:
        return 0
    start, end = place_of(lo), place_of(hi)
    if start.ledger == end.ledger:
        rows = (end.entry - start.entry) * per_entry + end.batch - start.batch
    else:
        rows = (max(1, LEDGER_ENTRIES - start.entry) + end.entry) * per_entry + end.batch
    return max(1, int(rows))


def position_after(lo: int, rows: int, hi: int, per_entry: float) -> int:
    """Return the position after about this many messages: the start of an entry, or `hi` at most.

    The ledger may end before it. The next message is then the first one of a later ledger, so nothing is
    skipped.
    """
    if rows >= rows_between(lo, hi, per_entry):
        return hi
    start = place_of(lo)
    entries = max(1, ceil(rows / per_entry))
    return min(hi, position_of(MessagePlace(start.ledger, start.entry + entries)))


def entry_borders(lo: int, hi: int, parts: int) -> list[int]:
    """Cut a range between entries into at most `parts` equal parts; one over several ledgers stays whole."""
    start, end = place_of(lo), place_of(hi)
    entries = end.entry - start.entry
    if start.ledger != end.ledger or entries < 1:
        return [lo, hi]
    count = min(parts, entries)
    firsts = [start.entry + entries * index // count for index in range(1, count)]
    return [lo, *(position_of(MessagePlace(start.ledger, entry)) for entry in firsts), hi]


def _entry_code(ledger: int, entry: int) -> tuple[int, int]:
    """Return the bits of ledger and entry, and the number of bits that remain for the batch index."""
    code, left = 0, _BITS
    for number, widths in ((ledger, _LEDGER_BITS), (entry, _ENTRY_BITS)):
        size = next((size for size, bits in enumerate(widths) if not number >> bits), None)
        if size is None or number < 0:
            raise _too_large(MessagePlace(ledger, entry))
        code = (code << _CLASS_BITS | size) << widths[size] | number
        left -= _CLASS_BITS + widths[size]
    if left < 0:
        raise _too_large(MessagePlace(ledger, entry))
    return code, left


def _too_large(place: MessagePlace) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the message {place} has no position of {_BITS} bits: its ledger, entry or batch index is too large"
    )
