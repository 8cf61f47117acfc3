"""The one thing that brokers of Apache Pulsar 5.0.0-M1 do unlike every other broker with scalable topics.

Its producers choose the segment of a key by the low half of the key's hash; those of later versions, and
ours, by the high half. The broker itself never looks, so the producers of a topic must agree. Other
differences are missing features, listed in docs/pulsar-5.md.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "Pulsar Server5.0.0-M1"
"""The version in CONNECTED of a broker of the release; builds between releases name more behind it."""


def routes_by_low_half(server_version: str) -> bool:
    """Whether the official producers of a broker choose segments by the low half of a key's hash."""
    return server_version == VERSION
