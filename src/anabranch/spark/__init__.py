"""Source and sink for PySpark; importing this package imports neither Spark nor Arrow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["AnabranchSource", "read_stream", "register", "session"]

_PLACES = {"session": "anabranch.spark.sessions"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_PLACES.get(name, "anabranch.spark.source")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
