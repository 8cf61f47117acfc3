"""Source and sink for PySpark. Importing this package loads neither Spark nor Arrow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "AnabranchSource": "source.data_source",
    "LagListener": "lag",
    "checkpoint_to_cut": "handover",
    "cut_to_checkpoint": "handover",
    "lag_of": "lag",
    "read_stream": "sessions",
    "register": "sessions",
    "session": "sessions",
}
"""The module of each public name."""

__all__ = [
    "AnabranchSource",
    "LagListener",
    "checkpoint_to_cut",
    "cut_to_checkpoint",
    "lag_of",
    "read_stream",
    "register",
    "session",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"anabranch.spark.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
