"""The base of all JSON objects that brokers and admin clients exchange."""

from __future__ import annotations

import msgspec


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object of the admin API: `msg_rate_in` in Python is `msgRateIn` in JSON."""
