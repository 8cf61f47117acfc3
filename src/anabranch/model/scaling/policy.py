"""Limits and thresholds of auto-scaling; topic over namespace over broker.

The fields are the thresholds, limits and cooldowns of PIP-483 in Python's spelling, those of PIP-486 for
buckets, and `load_stale_seconds`; docs/admin.md says what else differs. The layers above the broker's
override single fields. Only the result of `resolve` is checked, because two valid layers can give an invalid
policy. This module knows nothing of where the layers are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from anabranch.errors import InvalidConfigurationError
from anabranch.model.hashing import MAX_BUCKETS
from anabranch.model.ranges import HASH_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoScalePolicy:
    """Limits and thresholds of auto-scaling for one topic; rates are per second and per segment."""

    enabled: bool = True
    max_segments: int = 64
    min_segments: int = 1
    max_dag_depth: int = 10
    """How often auto-scaling may merge one part of the ring in the life of the topic."""
    split_cooldown_seconds: float = 60
    merge_cooldown_seconds: float = 300
    merge_window_seconds: float = 300
    """How long a segment must stay below every merge threshold before a merge."""
    rebucket_cooldown_seconds: float = 60
    split_msg_rate_in_threshold: float = 10_000
    split_bytes_rate_in_threshold: float = 50_000_000
    split_msg_rate_out_threshold: float = 50_000
    split_bytes_rate_out_threshold: float = 250_000_000
    merge_msg_rate_in_threshold: float = 1_000
    merge_bytes_rate_in_threshold: float = 5_000_000
    merge_msg_rate_out_threshold: float = 5_000
    merge_bytes_rate_out_threshold: float = 25_000_000
    split_vs_rebucket_min_msg_rate_in_threshold: float = 1_000
    """Below this rate a segment is not split for consumers; consumers share it by buckets instead."""
    entry_bucket_max_per_segment: int = MAX_BUCKETS
    load_stale_seconds: float = 120
    """Rates measured longer ago than this count as unknown."""


Override = Mapping[str, bool | int | float]
"""One layer over the broker's policy, by the names of the admin API; missing fields come from below."""


def resolve(
    broker: AutoScalePolicy, namespace: Override | None = None, topic: Override | None = None
) -> AutoScalePolicy:
    """Return the policy in force; raises InvalidConfigurationError when the layers give an invalid policy."""
    given = {**check_override(namespace or {}), **check_override(topic or {})}
    resolved = replace(broker, **{_FIELD_OF[key]: value for key, value in given.items()})  # type: ignore[arg-type]
    wrong = check_policy(resolved)
    if wrong:
        raise InvalidConfigurationError(f"the auto-scale policy cannot be used: {'; '.join(wrong)}")
    return resolved


def check_policy(policy: AutoScalePolicy) -> tuple[str, ...]:
    """Return one sentence for each fault of a resolved policy; empty when it can be used."""
    wrong = []
    # Each rule negates what must hold, because a comparison with NaN is false.
    if not policy.min_segments >= 1:
        wrong.append(f"minSegments must be at least 1, not {policy.min_segments}")
    if not policy.min_segments <= policy.max_segments <= HASH_SLOTS:
        wrong.append(
            f"maxSegments must be between minSegments ({policy.min_segments}) and {HASH_SLOTS}, "
            f"not {policy.max_segments}"
        )
    if not 1 <= policy.entry_bucket_max_per_segment <= MAX_BUCKETS:
        wrong.append(
            f"entryBucketMaxPerSegment must be 1 to {MAX_BUCKETS}, not {policy.entry_bucket_max_per_segment}"
        )
    for name in _NOT_NEGATIVE:
        if not 0 <= getattr(policy, name) < float("inf"):
            wrong.append(f"{json_name(name)} must be 0 or more, not {getattr(policy, name)}")
    for split_name in SPLIT_THRESHOLDS:
        merge_name = split_name.replace("split", "merge", 1)
        split, merge = getattr(policy, split_name), getattr(policy, merge_name)
        if not 0 < split < float("inf"):
            wrong.append(f"{json_name(split_name)} must be above 0, not {split}")
        elif not 0 <= merge < split:
            wrong.append(
                f"{json_name(merge_name)} must be 0 or more and below {json_name(split_name)} ({split}), "
                f"not {merge}"
            )
    return tuple(wrong)


def json_name(field: str) -> str:
    """Return the camel-case spelling Pulsar's admin API uses for a field."""
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


def to_json(policy: AutoScalePolicy) -> dict[str, bool | int | float]:
    """Return a policy as the admin API shows it."""
    return {json_name(name): getattr(policy, name) for name in FIELDS}


def check_override(data: Mapping[str, object]) -> dict[str, bool | int | float]:
    """Return the given fields in their types, without nulls; raises InvalidConfigurationError."""
    for key in data:
        if key not in _FIELD_OF:
            raise InvalidConfigurationError(
                f"an auto-scale policy has no field {key!r}; it knows {', '.join(_FIELD_OF)}"
            )
    return {key: coerce(name, data[key]) for key, name in _FIELD_OF.items() if data.get(key) is not None}


def coerce(field: str, value: object) -> bool | int | float:
    """Return the value converted to the type of its field.

    Raise InvalidConfigurationError for another type.
    """
    kind = _KINDS[field]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise InvalidConfigurationError(f"{json_name(field)} must be {_KIND_NAMES[kind]}, not {value!r}")


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(AutoScalePolicy))
_FIELD_OF = {json_name(name): name for name in FIELDS}
SPLIT_THRESHOLDS = (
    "split_msg_rate_in_threshold",
    "split_bytes_rate_in_threshold",
    "split_msg_rate_out_threshold",
    "split_bytes_rate_out_threshold",
)
BROKER_KEYS: Mapping[str, str] = MappingProxyType(
    {
        json_name("scalable_topic_" + ("auto_scale_enabled" if name == "enabled" else name)): name
        for name in FIELDS
    }
)
"""Pulsar's name of each setting in a broker's configuration -> field."""

_NOT_NEGATIVE = (
    "max_dag_depth",
    "split_cooldown_seconds",
    "merge_cooldown_seconds",
    "merge_window_seconds",
    "rebucket_cooldown_seconds",
    "split_vs_rebucket_min_msg_rate_in_threshold",
    "load_stale_seconds",
)
_WHOLE = ("max_segments", "min_segments", "max_dag_depth", "entry_bucket_max_per_segment")
_KINDS: Mapping[str, type[bool] | type[int] | type[float]] = {
    name: bool if name == "enabled" else int if name in _WHOLE else float for name in FIELDS
}
_KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number"}
