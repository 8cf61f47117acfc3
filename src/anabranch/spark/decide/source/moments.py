"""Moments at which a query starts or ends, as users write them. Pure: the current time is an argument.

A moment is milliseconds since 1970, an ISO time, or a time before now such as `-10m`. It stays text in a
symbolic start, so that a relative time counts from the moment when the start is resolved.

Example: at 1700000600000, `-10m` is 1700000000000. `2026-01-31T12:00:00Z` is 1769860800000 at any time, and
so is `2026-01-31T12:00:00`, because a time without a zone is in UTC.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from anabranch.errors import InvalidConfigurationError

Strategy = Literal["error", "latest"]

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELATIVE = re.compile(r"-\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Moments by topic, the moment of all other topics, and what to do if there is no message that young."""

    topics: Mapping[str, str] = field(default_factory=dict)
    otherwise: str | None = None
    strategy: Strategy = "error"

    def of(self, topic: str) -> str | None:
        """Return the moment of a topic, or None if only the offsets say where it starts."""
        return self.topics.get(topic, self.otherwise)


def moment_ms(text: str, now_ms: int) -> int:
    """Return milliseconds since 1970; raises ValueError. An ISO time without a zone is in UTC."""
    word = text.strip()
    if re.fullmatch(r"\d+", word):
        return int(word)
    relative = _RELATIVE.fullmatch(word.lower())
    if relative:
        return max(0, now_ms - int(float(relative[1]) * _UNITS_MS[relative[2]]))
    try:
        found = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(
            "it takes milliseconds since 1970, an ISO time such as 2026-01-31T12:00:00Z, or -10m"
        ) from None
    aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return max(0, int(aware.timestamp() * 1000))


def parse_moment(text: str) -> str:
    """Check a moment and return its text."""
    moment_ms(text, 0)
    return text.strip()


def parse_moments(text: str, option: str) -> dict[str, str]:
    """Parse the JSON of `startingOffsetsByTimestamp`, which maps topics to moments."""
    try:
        value = json.loads(text)
        assert isinstance(value, dict)
        return {str(topic): parse_moment(_text(moment)) for topic, moment in value.items()}
    except (AssertionError, TypeError, ValueError) as error:
        raise InvalidConfigurationError(
            f'option {option} is {text!r}; it takes JSON such as {{"orders": 1700000000000}}: {error}'
        ) from None


def _text(moment: Any) -> str:
    if isinstance(moment, bool) or not isinstance(moment, (str, int)):
        raise TypeError(f"{moment!r} is not a time")
    return str(moment)


def encode_times(times: StartTimes) -> dict[str, Any]:
    """Return the JSON value of a symbolic start; equal times give equal text."""
    return {
        "topics": dict(sorted(times.topics.items())),
        "otherwise": times.otherwise,
        "strategy": times.strategy,
    }


def decode_times(value: Mapping[str, Any]) -> StartTimes:
    """Return the times that `encode_times` encoded."""
    strategy: Strategy = "latest" if value.get("strategy") == "latest" else "error"
    return StartTimes(dict(value.get("topics", {})), value.get("otherwise"), strategy)
