"""The public methods of the client, found by reflection."""

from __future__ import annotations

import inspect
from typing import Any

INSIDE = {
    "open",
    "ready",
    "dropped",
    "voided",
    "active_changed",
    "use_share",
    "resumed",
    "join",
    "poll",
    "breathe",
    "figures",
    "attached_again",
    "reached_end",
    "vector",
    "is_final",
    "gave_up",
    "role_refused",
    "failed",
    "check_loop",
    "close_by",
    "batch_opened",
    "segment_attached",
    "entry_failed",
    "delivered",
    "closed_by_broker",
    "connection_lost",
    "check_open",
    "admit",
    "add_numbered",
    "enqueue_encoded",
    "enqueue_entries",
    "enqueue_many_prepared",
    "checkpoint_before",
    "subscribe",
    "consume",
    "bury",
    "use_dead_letters",
    "finished",
    "give_back",
    "hand_out_again",
    "has_messages_of",
    "left",
    "park",
    "end_run",
    "end_runs",
}
"""Methods that segments and connections call on the asyncio side, or the blocking side itself calls there."""


def methods(kind: type) -> dict[str, Any]:
    """The functions of a class that applications call, by name."""
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if name not in INSIDE}
    return {
        name: method
        for name, method in found.items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


def properties(kind: type) -> set[str]:
    """The names of the properties of a class that applications read."""
    return {
        name
        for name in dir(kind)
        if isinstance(inspect.getattr_static(kind, name), property)
        and name not in INSIDE
        and not name.startswith("_")
    }


def waiting_methods(kind: type) -> set[str]:
    """The names of the methods of an asyncio class that can wait."""
    return {
        name
        for name, method in methods(kind).items()
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(inspect.unwrap(method))
    }
