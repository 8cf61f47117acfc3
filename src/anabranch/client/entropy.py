"""The outside world of encryption: random bytes, and threads for key readers that may block."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def random_bytes(count: int) -> bytes:
    """Bytes that no one can guess."""
    return os.urandom(count)


async def in_thread(work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that may block, outside the event loop."""
    return await asyncio.to_thread(work, *args, **kwargs)
