"""Packages that only some schemas need: imported on first use, with an error that names the extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anabranch.errors import InvalidConfigurationError


def optional(package: str, purpose: str, extra: str) -> Any:
    """Return the package; raises InvalidConfigurationError if it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        raise InvalidConfigurationError(
            f"{purpose} need the package {package}: pip install 'anabranch[{extra}]'"
        ) from None
