"""The compiled functions and types that are built from `csrc/`, or their Python forms.

The Python form of each function stands beside its caller; the function is None where the package was built
without a compiler. `ANABRANCH_SPEEDUPS=off` chooses the Python forms.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

_sending: Any = None
_reading: Any = None
if os.environ.get("ANABRANCH_SPEEDUPS", "on") != "off":
    # A package in an archive has no compiled functions either.
    with suppress(ImportError):
        _sending, _reading = import_module("anabranch._sending"), import_module("anabranch._reading")

add_rows: Callable[[dict[Any, Any], list[bytes], list[Any] | None, int, Counter], int] | None
"""Routes, values, keys, the number of the first message to add, and the last sequence id."""
add_items: Callable[[dict[Any, Any], Any, Counter], Any] | None
"""Routes, a deque of plain items, and the last sequence id; an outcome for which a caller waits, or None."""
largest_plain: Callable[[list[Any], list[Any] | None], int | None] | None
"""The size of the largest of plain values; None if a value or key is not plain."""
find_messages: Callable[[bytes, list[int], list[int], Any], bool] | None
"""Joined payloads, the number of messages in each, the end of each, and six columns to fill."""
split_messages: Callable[[bytes, int, int], tuple[list[int], list[bytes | None]] | None] | None
"""A payload, the start of its first message and their number into offsets and values."""

add_rows = getattr(_sending, "add_rows", None)
add_items = getattr(_sending, "add_items", None)
largest_plain = getattr(_sending, "largest_plain", None)
find_messages = getattr(_reading, "find_messages", None)
split_messages = getattr(_reading, "split_messages", None)

PackedRows: Any = getattr(_sending, "PackedRows", list)
"""A list of the rows of an open batch, which the compiled form keeps as bytes of the entry."""

if TYPE_CHECKING or _sending is None:

    class RoomGate:
        """Whether callers must wait for room."""

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

else:
    RoomGate, Counter, OpenPlace = _sending.RoomGate, _sending.Counter, _sending.OpenPlace
    SendPlace, Enqueuer = _sending.SendPlace, _sending.Enqueuer
