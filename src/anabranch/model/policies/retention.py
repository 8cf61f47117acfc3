"""Retention: how long, and up to which size, acknowledged messages stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from anabranch.errors import InvalidConfigurationError

MEGABYTE: Final = 1024 * 1024
LIMIT_MAX: Final = 2**63 - 1
_LIMITS: Final = ("retentionTimeInMinutes", "retentionSizeInMB")


class Retention(NamedTuple):
    """Limits beyond which acknowledged messages of a topic are deleted; None means no limit."""

    time_s: float | None
    size_bytes: int | None = None


FOR_EVER: Final = Retention(None)


def check_retention(name: str, policy: object) -> object:
    """Return the policy as it is stored; raises InvalidConfigurationError."""
    given: dict[str, Any] = policy if isinstance(policy, dict) else {"": policy}
    found = {field: limit for field, limit in given.items() if limit is not None or field not in _LIMITS}
    if not all(
        field in _LIMITS and type(limit) in (int, float) and -1 <= limit <= LIMIT_MAX
        for field, limit in found.items()
    ):
        raise InvalidConfigurationError(
            f"{name} must have {' and '.join(_LIMITS)}, numbers from -1 to {LIMIT_MAX}"
        )
    if 0 in found.values() and any(found.values()):
        raise InvalidConfigurationError(
            "one limit of 0 would keep nothing: use -1 for no limit, or 0 for both to switch retention off"
        )
    return found


def retention_of(policy: object, default_s: float | None) -> Retention:
    """Return the limits of a stored policy; `default_s` applies if it has no time."""
    given: Mapping[str, Any] = policy if isinstance(policy, dict) else {}
    minutes, megabytes = given.get("retentionTimeInMinutes"), given.get("retentionSizeInMB")
    time_s = default_s
    if isinstance(minutes, int | float):
        time_s = None if minutes < 0 else minutes * 60.0
    # Pulsar refuses a size of 0 together with a time; ignoring the size loses no messages.
    if not isinstance(megabytes, int | float) or megabytes < 0 or (megabytes == 0 and time_s != 0):
        return Retention(time_s)
    return Retention(time_s, int(megabytes * MEGABYTE))
