"""The public methods of the client, found by reflection."""

from __future__ import annotations

import inspect
from typing import Any


def methods(kind: type) -> dict[str, Any]:
    """The functions of a class that applications call, by name."""
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind)}
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
        if isinstance(inspect.getattr_static(kind, name), property) and not name.startswith("_")
    }


def waiting_methods(kind: type) -> set[str]:
    """The names of the methods of an asyncio class that can wait."""
    return {
        name
        for name, method in methods(kind).items()
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(inspect.unwrap(method))
    }
