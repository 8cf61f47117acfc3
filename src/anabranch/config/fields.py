"""The declaration of one setting, and the checks of its value."""

from __future__ import annotations

import dataclasses
from typing import Any

from anabranch.errors import InvalidConfigurationError

OFF = -1
"""The number of a port that is switched off."""


def setting(
    default: Any,
    about: str,
    *,
    pulsar: str | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Return a field with its description for the default configuration file and its allowed values."""
    return dataclasses.field(
        default=default, metadata={"about": about, "pulsar": pulsar, "low": low, "high": high}
    )


def port_setting(default: int, about: str, *, pulsar: str) -> Any:
    """Return a field for a port; an empty text means OFF, as in Pulsar."""
    about = f"{about} 0 picks a free one; -1 or an empty text switches it off."
    metadata = {"about": about, "pulsar": pulsar, "low": OFF, "high": 65535, "empty": OFF}
    return dataclasses.field(default=default, metadata=metadata)


def secret_setting(about: str, *, pulsar: str) -> Any:
    """Return an optional text that may hold a secret, so the representation of the settings leaves it out."""
    return dataclasses.field(
        default="",
        repr=False,
        metadata={"about": about, "pulsar": pulsar, "low": None, "high": None, "secret": True},
    )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidConfigurationError(f"setting {name} must be one of {', '.join(choices)}, not {value!r}")


def check_value(field: dataclasses.Field[Any], value: object) -> None:
    default = field.default
    if default is None and value is None:
        return
    kind = str if default is None else type(default)
    names = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    right = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not right or (kind is not bool and isinstance(value, bool)):
        raise InvalidConfigurationError(f"setting {field.name} is {names[kind]}, not {value!r}")
    low, high = field.metadata["low"], field.metadata["high"]
    if isinstance(value, int | float) and not (
        (low is None or value >= low) and (value <= high if high is not None else value < float("inf"))
    ):
        allowed = f"{low:g} to {high:g}" if high is not None else f"at least {low:g}"
        raise InvalidConfigurationError(f"setting {field.name} must be {allowed}, not {value}")


def comma_list(text: str) -> list[str]:
    """Return the words of a setting that separates them by commas."""
    return [word for part in text.split(",") if (word := part.strip())]
