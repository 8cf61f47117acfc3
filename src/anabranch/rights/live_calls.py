"""The lines of admin calls about live topics: those of classic topics, as far as they are served."""

from __future__ import annotations

from typing import Final

from anabranch.rights.lines import (
    LIVE_ADMIN,
    LIVE_LOOK,
    LIVE_READ,
    LIVE_SUBSCRIPTION,
    NAMES,
    TableLine,
)

_LIVE: Final = "/admin/v2/non-persistent/{tenant}/{namespace}"
_TOPIC: Final = _LIVE + "/{topic}"
_SUBSCRIPTION: Final = _TOPIC + "/subscription/{subscription}"

LIVE_CALLS: Final[dict[tuple[str, str], TableLine]] = {
    ("GET", _LIVE): NAMES,
    ("GET", _LIVE + "/partitioned"): NAMES,
    ("GET", _LIVE + "/{bundle}"): NAMES,
    ("PUT", _TOPIC): LIVE_ADMIN,
    ("DELETE", _TOPIC): LIVE_ADMIN,
    ("PUT", _TOPIC + "/partitions"): LIVE_ADMIN,
    ("POST", _TOPIC + "/partitions"): LIVE_ADMIN,
    ("GET", _TOPIC + "/partitions"): LIVE_LOOK,
    ("DELETE", _TOPIC + "/partitions"): LIVE_ADMIN,
    ("GET", _TOPIC + "/stats"): LIVE_LOOK,
    ("GET", _TOPIC + "/partitioned-stats"): LIVE_LOOK,
    ("GET", _TOPIC + "/internalStats"): LIVE_LOOK,
    ("GET", _TOPIC + "/partitioned-internalStats"): LIVE_LOOK,
    ("PUT", _TOPIC + "/unload"): LIVE_ADMIN,
    ("GET", _TOPIC + "/subscriptions"): LIVE_READ,
    ("PUT", _SUBSCRIPTION): LIVE_SUBSCRIPTION,
    ("DELETE", _SUBSCRIPTION): LIVE_SUBSCRIPTION,
    ("GET", _TOPIC + "/permissions"): LIVE_ADMIN,
    ("POST", _TOPIC + "/permissions/{role}"): LIVE_ADMIN,
    ("DELETE", _TOPIC + "/permissions/{role}"): LIVE_ADMIN,
}
