"""The lines of admin calls about topics, their subscriptions and segments."""

from __future__ import annotations

from typing import Final

from anabranch.rights.lines import (
    CLASSIC_ADMIN,
    CLASSIC_LOOK,
    CLASSIC_READ,
    CLASSIC_SUBSCRIPTION,
    NAMES,
    SCALABLE_ADMIN,
    SCALABLE_LOOK,
    SCALABLE_SUBSCRIPTION,
    SUPERUSER,
    TableLine,
    policy_lines,
    topic_line,
)
from anabranch.rights.needs import Right

_CLASSIC: Final = "/admin/v2/persistent/{tenant}/{namespace}"
_SCALABLE: Final = "/admin/v2/scalable/{tenant}/{namespace}"
_CLASSIC_TOPIC: Final = _CLASSIC + "/{topic}"
_SCALABLE_TOPIC: Final = _SCALABLE + "/{topic}"
_CLASSIC_SUB: Final = _CLASSIC_TOPIC + "/subscription/{subscription}"
_SCALABLE_SUB: Final = _SCALABLE_TOPIC + "/subscriptions/{subscription}"
_SEGMENT: Final = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"


TOPIC_CALLS: Final[dict[tuple[str, str], TableLine]] = {
    ("GET", _CLASSIC): NAMES,
    ("GET", _CLASSIC + "/partitioned"): NAMES,
    ("PUT", _CLASSIC_TOPIC): CLASSIC_ADMIN,
    ("DELETE", _CLASSIC_TOPIC): CLASSIC_ADMIN,
    ("PUT", _CLASSIC_TOPIC + "/partitions"): CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/partitions"): CLASSIC_ADMIN,
    ("GET", _CLASSIC_TOPIC + "/partitions"): CLASSIC_LOOK,
    ("DELETE", _CLASSIC_TOPIC + "/partitions"): CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/terminate"): CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/terminate/partitions"): CLASSIC_ADMIN,
    ("GET", _CLASSIC_TOPIC + "/lastMessageId"): CLASSIC_READ,
    ("GET", _CLASSIC_TOPIC + "/ledger/{ledger}/entry/{entry}"): CLASSIC_READ,
    ("GET", _CLASSIC_TOPIC + "/examinemessage"): CLASSIC_READ,
    ("GET", _CLASSIC_TOPIC + "/messageid/{timestamp}"): CLASSIC_READ,
    ("GET", _CLASSIC_SUB + "/position/{position}"): CLASSIC_SUBSCRIPTION,
    ("GET", _CLASSIC_TOPIC + "/properties"): CLASSIC_LOOK,
    ("PUT", _CLASSIC_TOPIC + "/properties"): CLASSIC_ADMIN,
    ("DELETE", _CLASSIC_TOPIC + "/properties"): CLASSIC_ADMIN,
    ("GET", _CLASSIC_TOPIC + "/stats"): CLASSIC_LOOK,
    ("GET", _CLASSIC_TOPIC + "/partitioned-stats"): CLASSIC_LOOK,
    ("GET", _CLASSIC_TOPIC + "/internalStats"): CLASSIC_LOOK,
    ("GET", _CLASSIC_TOPIC + "/partitioned-internalStats"): CLASSIC_LOOK,
    ("GET", _CLASSIC_TOPIC + "/subscriptions"): CLASSIC_READ,
    ("GET", _CLASSIC_TOPIC + "/permissions"): CLASSIC_ADMIN,
    ("POST", _CLASSIC_TOPIC + "/permissions/{role}"): CLASSIC_ADMIN,
    ("DELETE", _CLASSIC_TOPIC + "/permissions/{role}"): CLASSIC_ADMIN,
    ("PUT", _CLASSIC_SUB): CLASSIC_SUBSCRIPTION,
    ("DELETE", _CLASSIC_SUB): CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/skip_all"): CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/skip/{count}"): CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/resetcursor"): CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/resetcursor/{timestamp}"): CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/expireMessages/{seconds}"): CLASSIC_SUBSCRIPTION,
    ("GET", _CLASSIC_SUB + "/lanes"): CLASSIC_SUBSCRIPTION,
    ("GET", _CLASSIC_SUB + "/lanes/{lane}"): CLASSIC_SUBSCRIPTION,
    ("GET", _CLASSIC_SUB + "/lanes/{lane}/messages"): CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/lanes/{lane}/release"): CLASSIC_SUBSCRIPTION,
    ("POST", _CLASSIC_SUB + "/lanes/{lane}/skip"): CLASSIC_SUBSCRIPTION,
    ("GET", _SCALABLE): NAMES,
    ("PUT", _SCALABLE_TOPIC): SCALABLE_ADMIN,
    ("GET", _SCALABLE_TOPIC): SCALABLE_LOOK,
    ("DELETE", _SCALABLE_TOPIC): SCALABLE_ADMIN,
    ("GET", _SCALABLE_TOPIC + "/stats"): SCALABLE_LOOK,
    ("GET", _SCALABLE_TOPIC + "/why"): SCALABLE_LOOK,
    ("GET", _SCALABLE_TOPIC + "/segments/{segment}/stats"): SCALABLE_LOOK,
    ("POST", _SCALABLE_TOPIC + "/migrate"): topic_line(Right.PRODUCE, "topic"),
    ("POST", _SCALABLE_TOPIC + "/split/{segment}"): SUPERUSER,
    ("POST", _SCALABLE_TOPIC + "/merge/{segments:path}"): SUPERUSER,
    ("POST", _SCALABLE_TOPIC + "/rebucket/{segment}"): SUPERUSER,
    ("GET", _SCALABLE_TOPIC + "/properties"): SCALABLE_LOOK,
    ("PUT", _SCALABLE_TOPIC + "/properties"): SCALABLE_ADMIN,
    ("DELETE", _SCALABLE_TOPIC + "/properties"): SCALABLE_ADMIN,
    **policy_lines(_CLASSIC_TOPIC, CLASSIC_ADMIN),
    **policy_lines(_SCALABLE_TOPIC, SCALABLE_ADMIN, "autoScalePolicy"),
    ("GET", _SCALABLE_TOPIC + "/permissions"): SCALABLE_ADMIN,
    ("POST", _SCALABLE_TOPIC + "/permissions/{role}"): SCALABLE_ADMIN,
    ("DELETE", _SCALABLE_TOPIC + "/permissions/{role}"): SCALABLE_ADMIN,
    ("PUT", _SCALABLE_SUB): SCALABLE_SUBSCRIPTION,
    ("DELETE", _SCALABLE_SUB): SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/seek"): SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/skip-all"): SCALABLE_SUBSCRIPTION,
    ("GET", _SCALABLE_SUB + "/lanes"): SCALABLE_SUBSCRIPTION,
    ("GET", _SCALABLE_SUB + "/lanes/{lane}"): SCALABLE_SUBSCRIPTION,
    ("GET", _SCALABLE_SUB + "/lanes/{lane}/messages"): SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/lanes/{lane}/release"): SCALABLE_SUBSCRIPTION,
    ("POST", _SCALABLE_SUB + "/lanes/{lane}/skip"): SCALABLE_SUBSCRIPTION,
    ("PUT", _SEGMENT): SUPERUSER,
    ("POST", _SEGMENT + "/terminate"): SUPERUSER,
    ("DELETE", _SEGMENT): SUPERUSER,
    ("PUT", _SEGMENT + "/subscription/{subscription}"): SUPERUSER,
    ("DELETE", _SEGMENT + "/subscription/{subscription}"): SUPERUSER,
    ("GET", _SEGMENT + "/subscription/{subscription}/backlog"): SUPERUSER,
    ("POST", _SEGMENT + "/subscription/{subscription}/seek"): SUPERUSER,
    ("POST", _SEGMENT + "/subscription/{subscription}/skip-all"): SUPERUSER,
}
