"""The settings that can change while brokers run: those that hold where a namespace or topic has no policy.

All other settings are read once at the start: sockets, files, threads and sizes of buffers depend on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from anabranch.config.broker import BrokerConfig
from anabranch.config.files import parse_setting
from anabranch.errors import InvalidConfigurationError

_FIELDS: Final = (
    "auto_create_topics",
    "deduplication",
    "max_unacked_per_consumer",
    "max_unacked_per_subscription",
    "max_topics_per_namespace",
    "max_producers_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_subscriptions_per_topic",
    "publish_messages_per_s",
    "publish_bytes_per_s",
    "dispatch_messages_per_s",
    "dispatch_bytes_per_s",
    "subscription_messages_per_s",
    "subscription_bytes_per_s",
    "dispatch_relative",
)

DYNAMIC: Final[Mapping[str, str]] = {
    field.metadata["pulsar"]: field.name
    for field in dataclasses.fields(BrokerConfig)
    if field.name in _FIELDS
}
"""The field of each setting that can change, by Pulsar's name."""


def with_values(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """Return the settings with these values, by Pulsar's names.

    Raise InvalidConfigurationError for a value that is not allowed or cannot change while brokers run.
    """
    changed: dict[str, Any] = {}
    for name, text in values.items():
        field = DYNAMIC.get(name)
        if field is None:
            raise InvalidConfigurationError(f"{name} cannot be changed while brokers run")
        changed[field] = parse_setting(field, text)
    return dataclasses.replace(config, **changed)
