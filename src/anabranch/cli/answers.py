"""The output of commands, lines or JSON; the question before a deletion; options that exclude each other."""

from __future__ import annotations

import json
import sys
from typing import Any

from anabranch.errors import InvalidConfigurationError


class UsageError(Exception):
    """The words of a command do not fit together."""


def exactly_one(**options: object) -> None:
    """Raise UsageError unless one of these options is given, by the names of the parameters."""
    at_most_one(**options)
    if not _given(options):
        raise UsageError(f"give {' or '.join(map(_option, options))}")


def at_most_one(**options: object) -> None:
    """Raise UsageError if several of these options are given."""
    given = _given(options)
    if len(given) > 1:
        raise UsageError(f"give {' or '.join(map(_option, given))}, not both")


def at_least_1(**numbers: int | None) -> None:
    """Raise UsageError if one of these options is given and below 1, by the names of the parameters."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UsageError(f"{_option(name)} is {number}; it takes a number of at least 1")


def _given(options: dict[str, object]) -> list[str]:
    return [name for name, value in options.items() if value not in (None, False)]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def tell(data: Any, *lines: str, as_json: bool) -> int:
    """Print the JSON document or the lines; returns the exit code of success."""
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        for line in lines:
            print(line)
    return 0


def confirmed(what: str, *, yes: bool) -> bool:
    """Ask a person before `what`, such as "delete topic t", is done.

    Raises InvalidConfigurationError without a terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidConfigurationError(f"this would {what} for good; confirm it with --yes")
    print(f"{what[0].upper()}{what[1:]} for good? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was changed", file=sys.stderr)
    return False
