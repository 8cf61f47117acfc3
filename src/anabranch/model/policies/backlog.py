"""Backlog quotas: what happens when subscriptions leave too many or too old messages unacknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from anabranch.errors import InvalidConfigurationError

QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
"""Producers wait, or fail, until there is room; or the oldest messages are acknowledged for consumers."""

STORAGE: Final = "destination_storage"
AGE: Final = "message_age"
QUOTA_TYPES: Final = (STORAGE, AGE)
LIMIT_MAX: Final = 2**63 - 1
KEPT_SHARE: Final = 0.9
"""Share of a quota that an eviction leaves in use, so that evictions are not needed for every few entries."""

_NUMBERS: Final = ("limit", "limitSize", "limitTime")


class BacklogQuota(NamedTuple):
    """The limits of one log; None means no limit."""

    bytes_max: int | None = None
    bytes_action: QuotaAction = "producer_request_hold"
    age_max_s: int | None = None
    age_action: QuotaAction = "producer_request_hold"

    @property
    def limits(self) -> bool:
        return self.bytes_max is not None or self.age_max_s is not None


NO_QUOTA: Final = BacklogQuota()


class OldestBacklog(NamedTuple):
    """The backlog of the slowest durable subscription of a log."""

    subscription: str
    size_bytes: int
    age_s: float


class QuotaExceeded(NamedTuple):
    """A quota that is used up: what to do, and why."""

    action: QuotaAction
    reason: str


def decide(quota: BacklogQuota, backlog: OldestBacklog | None) -> QuotaExceeded | None:
    """Return what the quota demands now; None if the backlog is within it."""
    if backlog is None:
        return None
    whose = f"subscription {backlog.subscription} leaves"
    if quota.bytes_max is not None and backlog.size_bytes > quota.bytes_max:
        reason = f"{whose} {backlog.size_bytes} bytes unacknowledged: backlogQuota={quota.bytes_max}"
        return QuotaExceeded(quota.bytes_action, reason)
    if quota.age_max_s is not None and backlog.age_s > quota.age_max_s:
        reason = (
            f"{whose} a message of {round(backlog.age_s)} s unacknowledged: backlogQuota={quota.age_max_s} s"
        )
        return QuotaExceeded(quota.age_action, reason)
    return None


def check_type(name: str | None) -> str:
    """Return the type of a quota as a caller names it."""
    if name is None:
        return STORAGE
    if name not in QUOTA_TYPES:
        raise InvalidConfigurationError(f"backlogQuotaType must be one of {', '.join(QUOTA_TYPES)}")
    return name


def check_quota(kind: str, value: object) -> dict[str, Any]:
    """Return a quota of this type in its full form; raises InvalidConfigurationError."""
    if not isinstance(value, dict):
        raise InvalidConfigurationError("backlogQuota must be an object with limitSize, limitTime and policy")
    unknown = [field for field in value if field not in (*_NUMBERS, "policy")]
    if unknown:
        raise InvalidConfigurationError(f"backlogQuota has no field {unknown[0]!r}")
    action = value.get("policy")
    if action not in get_args(QuotaAction):
        raise InvalidConfigurationError(f"policy must be one of {', '.join(get_args(QuotaAction))}")
    for field in _NUMBERS:
        found = value.get(field)
        if found is not None and (type(found) is not int or not -LIMIT_MAX <= found <= LIMIT_MAX):
            raise InvalidConfigurationError(f"{field} must be a whole number, not {found!r}")
    size = value.get("limitSize")
    size = value.get("limit") if size is None else size
    time_s = value.get("limitTime")
    given = size if kind == STORAGE else time_s
    if given is None or given == 0:
        wanted = "limitSize in bytes" if kind == STORAGE else "limitTime in seconds"
        raise InvalidConfigurationError(f"a quota of type {kind} needs {wanted}; -1 means no limit")
    return {
        "limitSize": -1 if size is None else size,
        "limitTime": -1 if time_s is None else time_s,
        "policy": action,
    }


def check_quotas(name: str, value: object) -> dict[str, Any]:
    """Return all quotas of a namespace or topic, by type; raises InvalidConfigurationError."""
    if not isinstance(value, dict):
        raise InvalidConfigurationError(f"{name} must be an object that maps types to quotas")
    return {check_type(kind): check_quota(kind, quota) for kind, quota in value.items()}


def quota_of(layers: Sequence[object]) -> BacklogQuota:
    """Return the limits in force: those of the topic, or of the namespace for types the topic lacks."""
    size, size_action = _read(STORAGE, "limitSize", layers)
    age, age_action = _read(AGE, "limitTime", layers)
    return BacklogQuota(size, size_action, age, age_action)


def _read(kind: str, field: str, layers: Sequence[object]) -> tuple[int | None, QuotaAction]:
    for layer in layers:
        quota: Mapping[str, Any] | None = layer.get(kind) if isinstance(layer, dict) else None
        if isinstance(quota, dict):
            limit = quota.get(field)
            for action in get_args(QuotaAction):
                if type(limit) is int and limit > 0 and quota.get("policy") == action:
                    return limit, action
            return None, "producer_request_hold"
    return None, "producer_request_hold"
