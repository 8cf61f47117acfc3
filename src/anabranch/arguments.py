"""Checks of the arguments of callers: an error names the argument and says what is expected.

They run before anything else happens. This module knows no particular argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import NoneType
from typing import TypeVar, cast, get_type_hints

from anabranch.errors import InvalidConfigurationError

V = TypeVar("V")

INT32_MAX = 2**31 - 1
"""Largest number that fits the signed 32-bit fields of Pulsar's protocol."""


def refused(name: str, expected: str, value: object) -> InvalidConfigurationError:
    """Return the error for an argument of a wrong type or value."""
    return InvalidConfigurationError(f"{name} must be {expected}, not {value!r}")


def of_kind(name: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Check the type of an argument."""
    if not isinstance(value, kind):
        raise refused(name, expected, value)


def check_optional(name: str, value: object, kind: type, expected: str) -> None:
    """Check the type of an argument that may be None."""
    of_kind(name, value, (kind, NoneType), expected)


def check_text(name: str, value: object) -> None:
    of_kind(name, value, str, "text")


def check_flag(name: str, value: object) -> None:
    of_kind(name, value, bool, "True or False")


def check_function(name: str, value: object) -> None:
    """Check an argument that is called later, or None."""
    if value is not None and not callable(value):
        raise refused(name, "a function", value)


def number_of(value: object) -> float:
    """Return a number, or a duration in seconds; NaN for a value that is neither."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bool, str, bytes, bytearray)):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def check_number(name: str, value: object, *, least: float) -> None:
    """Validate a number that is not a duration. Infinity is allowed."""
    number = math.nan if isinstance(value, timedelta) else number_of(value)
    if not number >= least:
        raise refused(name, f"a number of at least {least:g}", value)


def whole(name: str, value: int, *, least: int = 0, most: int | None = None) -> int:
    """Return a whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise refused(name, f"a whole number of at least {least}", value)
    if most is not None and value > most:
        raise refused(name, f"a whole number of at most {most}", value)
    return value


def mapped(name: str, value: Mapping[str, V] | None) -> dict[str, V]:
    """Return a copy of a mapping; None gives an empty one."""
    check_optional(name, value, Mapping, "a mapping")
    return dict(value or {})


def listed(name: str, values: Iterable[object], kind: type[V], expected: str) -> tuple[V, ...]:
    """Return the items of an argument that is a list of one kind of objects."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise refused(name, expected, values)
    found = tuple(values)
    for one in found:
        of_kind(name, one, kind, expected)
    return cast(tuple[V, ...], found)


def refuse_unknown(given: Mapping[str, object], known: type) -> None:
    """Raise TypeError, as Python does, for a keyword that the TypedDict `known` does not have."""
    for name in given.keys() - get_type_hints(known).keys():
        raise TypeError(f"unexpected keyword argument {name!r}")


def texts(name: str, values: Iterable[str]) -> list[str]:
    """Return the items of an argument that is a list of texts."""
    return list(listed(name, values, str, "a list of texts"))
