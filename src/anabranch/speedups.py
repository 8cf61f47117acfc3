"""The compiled functions and types that are built from `csrc/`, or their Python forms.

The Python form of each function stands next to its caller; the compiled function is None if the package was
built without a compiler. `ANABRANCH_SPEEDUPS=off` chooses the Python forms.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

_sending: Any = None
_reading: Any = None
_syncing: Any = None
_columns: Any = None
if os.environ.get("ANABRANCH_SPEEDUPS", "on") != "off":
    # A package in an archive has no compiled functions either.
    with suppress(ImportError):
        _sending, _reading = import_module("anabranch._sending"), import_module("anabranch._reading")
        _columns = import_module("anabranch._columns")
    # Only Linux has event descriptors.
    with suppress(ImportError):
        _syncing = import_module("anabranch._syncing")

add_rows: Callable[[dict[Any, Any], list[bytes], list[Any] | None, int, Counter], int] | None
"""Routes, values, keys, the number of the first message to add, and the last sequence id."""
add_items: Callable[[dict[Any, Any], Any, Counter], Any] | None
"""Routes, a deque of plain items, and the last sequence id; an outcome for which a caller waits, or None."""
largest_plain: Callable[[list[Any], list[Any] | None], int | None] | None
"""The size of the largest of plain values; None if a value or key is not plain."""
find_messages: Callable[[bytes, list[int], list[int], Any], bool] | None
"""Joined payloads, the number of messages in each, the end of each, and six columns to fill."""
holds_messages: Callable[[bytes, int, int], bool] | None
"""Whether `split_messages` would find the messages."""
make_messages: Callable[[type[Any], Any, int | list[int], int], list[Any]] | None
"""A type of messages, their entry, their indexes or their number, and the number of the last one."""
uncollected: Callable[[type[Any]], type[Any]] | None
"""The class of messages, as one whose objects the garbage collector ignores."""
split_messages: Callable[[bytes, int, int], tuple[list[int], list[bytes | None]] | None] | None
"""A payload, the start of its first message and their number into offsets and values."""
copy_messages: Callable[..., tuple[int, int, int] | None] | None
"""Payloads, the number of messages in each, and columns to fill: keys with offsets and flags, and values."""
join_messages: Callable[..., bool] | None
"""The order of rows, keys, values, event times, first sequence id, and bytes and offsets to fill."""
hash_rows: Callable[[Any, Any, Any], bool] | None
"""The bytes of keys, the offsets before and after each, and a column of hashes to fill."""

add_rows = getattr(_sending, "add_rows", None)
add_items = getattr(_sending, "add_items", None)
largest_plain = getattr(_sending, "largest_plain", None)
find_messages = getattr(_reading, "find_messages", None)
holds_messages = getattr(_reading, "holds_messages", None)
uncollected = getattr(_reading, "uncollected", None)
make_messages = getattr(_reading, "make_messages", None)
split_messages = getattr(_reading, "split_messages", None)
copy_messages = getattr(_columns, "copy_messages", None)
join_messages = getattr(_columns, "join_messages", None)
hash_rows = getattr(_columns, "hash_rows", None)


class SyncThreadType(Protocol):
    """A thread that appends bytes to a file and syncs it, one append at a time; it never holds the GIL."""

    def give(self, file: int, data: bytes) -> None:
        """Append the bytes to the file of a descriptor and sync it; RuntimeError while another one lasts."""

    def take(self) -> tuple[int, int] | None:
        """Return the bytes that the append wrote and the number of its error, or 0.

        Return None while it is under way.
        """

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when an append has ended."""

    def close(self) -> None:
        """Take no more appends, and wait for the one under way."""


SyncThread: Callable[[], SyncThreadType] | None = getattr(_syncing, "SyncThread", None)

PackedRows: Any = getattr(_sending, "PackedRows", list)
"""A list of the rows of an open batch, which the compiled form keeps as bytes of the entry."""

if TYPE_CHECKING or _sending is None:

    class RoomGate:
        """Tells whether callers must wait for room."""

        __slots__ = ("full",)
        full: bool

    class Counter:
        """The last sequence id of a producer."""

        __slots__ = ("last",)
        last: int

    class OpenPlace:
        """An open batch, its rows, and the room that is left."""

        __slots__ = ("batch", "bytes_left", "room", "rows")
        batch: Any
        rows: Any
        room: int
        bytes_left: int

    class SendPlace:
        """The place of a message in its batch, which its future remembers."""

        __slots__ = ("_asyncio_future_blocking", "_batch", "_cancelled", "_index", "_loop")
        _batch: Any
        _index: int
        _loop: Any
        _cancelled: bool
        _asyncio_future_blocking: bool

        def __init__(self, batch: Any, index: int, loop: Any) -> None:
            self._batch, self._index, self._loop = batch, index, loop
            self._cancelled = self._asyncio_future_blocking = False

    class Enqueuer:
        """The quick way into the batches of a producer; only the compiled form exists."""

        closed: bool
        enqueue: Callable[..., Coroutine[Any, Any, Any]]

        def __init__(self, *parts: Any) -> None:
            """The routes by key, gate, counter, type of futures, loop, and `enqueue` for unusual messages."""
            raise NotImplementedError

    class ReceivedPlace(msgspec.Struct, eq=False, gc=False):
        """The place of a message in a received entry; messages are made in great numbers."""

        _entry: Any
        _index: int
        _number: int
        _retries: int = 0

else:
    RoomGate, Counter, OpenPlace = _sending.RoomGate, _sending.Counter, _sending.OpenPlace
    SendPlace, Enqueuer = _sending.SendPlace, _sending.Enqueuer
    ReceivedPlace = _reading.ReceivedPlace
