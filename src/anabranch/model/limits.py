"""How long names and properties may be, on the wire, in REST calls and in the client.

A broker keeps names in memory, in records and in logs, so each has a limit. This module knows no command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from anabranch.errors import InvalidNameError, LimitExceededError

ENTITY_BYTES_MAX: Final = 256
"""Most bytes of the name of a tenant, namespace or cluster."""

LOCAL_BYTES_MAX: Final = 1024
"""Most bytes of the last part of a topic name, without the number of a partition."""

TOPIC_BYTES_MAX: Final = 2048
"""Most bytes of a whole topic name: scheme, tenant, namespace, local name, and a partition or segment."""

PARTITIONS_MAX: Final = 10_000
"""Most partitions of a classic or live topic."""

NAME_BYTES_MAX: Final = 1024
"""Most bytes of the name of a subscription, producer or consumer."""

PROPERTIES_MAX: Final = 256
PROPERTY_KEY_BYTES_MAX: Final = 1024
PROPERTY_VALUE_BYTES_MAX: Final = 4096

_SHOWN: Final = 60


def fits(text: str, bytes_max: int) -> bool:
    """Return whether the UTF-8 form of a text has at most this many bytes."""
    if len(text) * 4 <= bytes_max:
        return True
    return len(text) <= bytes_max and (text.isascii() or len(text.encode(errors="replace")) <= bytes_max)


def shown(text: str) -> str:
    """Return a text as an error message shows it; long texts are cut."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def bounded_name(kind: str, name: str, bytes_max: int) -> str:
    """Return the name if it is short enough to be kept; raises InvalidNameError."""
    if not isinstance(name, str):
        raise InvalidNameError(f"a {kind} name must be text, not {name!r}")
    if not fits(name, bytes_max):
        raise InvalidNameError(f"a {kind} name has at most {bytes_max} bytes; shorten {shown(name)}")
    return name


def check_properties(what: str, pairs: Mapping[str, str]) -> None:
    """Raise LimitExceededError for properties that are too many or too long."""
    if len(pairs) > PROPERTIES_MAX:
        raise LimitExceededError(f"{what} may have at most {PROPERTIES_MAX} pairs, not {len(pairs)}")
    for key, value in pairs.items():
        if not fits(key, PROPERTY_KEY_BYTES_MAX):
            raise LimitExceededError(
                f"a key of {what} has at most {PROPERTY_KEY_BYTES_MAX} bytes; shorten {shown(key)}"
            )
        if not fits(value, PROPERTY_VALUE_BYTES_MAX):
            raise LimitExceededError(
                f"a value of {what} has at most {PROPERTY_VALUE_BYTES_MAX} bytes; shorten {shown(key)}"
            )
