"""Places in a log as the bodies of calls: checked once, before any log is asked."""

from __future__ import annotations

import msgspec

from anabranch.admin.calls import NUMBER_MAX, Call
from anabranch.admin.models.topics import CursorPosition
from anabranch.errors import InvalidConfigurationError


async def place_in(call: Call) -> object:
    """The place that the body names, None without a body; InvalidConfigurationError for a malformed id."""
    place = await call.body(object)
    if isinstance(place, dict):
        try:
            msgspec.convert(place, CursorPosition)
        except msgspec.ValidationError as error:
            raise InvalidConfigurationError(f"the body is not a message id: {error}") from error
    return place


def names_an_entry(place: object) -> bool:
    """Whether a place is an entry of one log, not the beginning or the end of any."""
    ledger = place.get("ledgerId") if isinstance(place, dict) else None
    return isinstance(ledger, int) and 0 <= ledger < NUMBER_MAX
