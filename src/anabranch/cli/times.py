"""Times as operators write them. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from anabranch.errors import InvalidConfigurationError

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 365 * 86_400}


def seconds_of(text: str) -> int:
    """Return the seconds of a time such as `30d`; raises InvalidConfigurationError."""
    found = re.fullmatch(r"(\d{1,9})([smhdwy])", text.strip())
    if found is None or int(found[1]) == 0:
        raise InvalidConfigurationError(f"{text!r} is not a time; write it as 30s, 15m, 12h, 30d, 4w or 1y")
    return int(found[1]) * SECONDS[found[2]]


def time_of(text: str, now_s: float) -> int:
    """Return milliseconds since 1970 of `2h` (ago), of an ISO time, or of milliseconds as they are.

    A time without a zone is one of this machine; `earliest` is before all messages. Raises
    InvalidConfigurationError.
    """
    if text == "earliest":
        return 0
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        pass
    try:
        return int((now_s - seconds_of(text)) * 1000)
    except InvalidConfigurationError:
        raise InvalidConfigurationError(
            f"--to {text!r}: write earliest, a time such as 2026-11-16T12:00, or how long ago, such as 15m, "
            "2h or 1d; `anabranch subscription skip` goes behind the last message"
        ) from None
