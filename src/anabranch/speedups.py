"""The compiled functions of `_speedups.c`, or None where the package was built without a compiler.

The Python form of each function stands beside its caller. `ANABRANCH_SPEEDUPS=off` chooses that form.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

_compiled: Any = None
if os.environ.get("ANABRANCH_SPEEDUPS", "on") != "off":
    # A package in an archive has no compiled functions either.
    with suppress(ImportError):
        _compiled = import_module("anabranch._speedups")

add_rows: Callable[[dict[Any, Any], list[bytes], list[Any] | None, int, int], int] | None
"""Routes, values, keys, the number of the first message to add, and the sequence id before it."""
encode_rows: Callable[[list[Any]], tuple[bytes, bytes | None, int, int] | None] | None
"""Rows into messages, the field of their sizes, and their lowest and highest bucket hash."""
find_messages: Callable[[bytes, list[int], list[int], Any], bool] | None
"""Joined payloads, the number of messages in each, the end of each, and six columns to fill."""
split_messages: Callable[[bytes, int, int], tuple[list[int], list[bytes | None]] | None] | None
"""A payload, the start of its first message and their number into offsets and values."""

add_rows = getattr(_compiled, "add_rows", None)
encode_rows = getattr(_compiled, "encode_rows", None)
find_messages = getattr(_compiled, "find_messages", None)
split_messages = getattr(_compiled, "split_messages", None)
