"""The kinds of readers in a cluster run, by the name of their subscription, and how each of them opens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anabranch.errors import AnabranchError

T = TypeVar("T")

STREAM = "stream"
QUEUE = "queue"
KEYED = "keyed"
"""A queue whose keys keep their order."""
CHECKPOINT = "checkpoint"
"""Not a subscription: the deliveries up to the last checkpoint, and those after it."""
GROUP = "group"
"""Not a subscription: checkpoint consumers that share segments and commit their positions."""

TAKEN_BACK = "taken back"
"""Deliveries after the checkpoint from which a reader was restored; they do not count."""


async def persist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry until the brokers answer."""
    while True:
        try:
            return await attempt()
        except AnabranchError:
            await asyncio.sleep(0.5)
