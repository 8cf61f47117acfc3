"""Source and sink for PySpark; importing this package imports neither Spark nor Arrow."""

from __future__ import annotations

from typing import Any

__all__ = ["AnabranchSource", "read_stream", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from anabranch.spark import source

        return getattr(source, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
