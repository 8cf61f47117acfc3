"""The policies of namespaces and topics about schemas, by Pulsar's names, and which of them apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from anabranch.errors import InvalidConfigurationError
from anabranch.schemas.compatibility import STRATEGIES, Strategy

STRATEGY: Final = "schemaCompatibilityStrategy"
AUTO_UPDATE: Final = "isAllowAutoUpdateSchema"
ENFORCED: Final = "schemaValidationEnforced"
OLD_STRATEGY: Final = "schemaAutoUpdateCompatibilityStrategy"

FIELDS: Final[Mapping[str, str]] = {
    STRATEGY: "schema_compatibility_strategy",
    AUTO_UPDATE: "is_allow_auto_update_schema",
    ENFORCED: "schema_validation_enforced",
    OLD_STRATEGY: "schema_auto_update_compatibility_strategy",
}
"""Name in the path -> name in Pulsar's Policies."""

UNDEFINED: Final = "UNDEFINED"
_OLD: Final[Mapping[str, Strategy]] = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
"""Values of the older policy, which counts where the newer one is not set."""


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """The policy for the schemas of a topic."""

    strategy: Strategy = "FULL"
    auto_update: bool = True
    """Whether producers may register new schemas; otherwise only administrators do."""
    enforced: bool = False
    """Whether producers without a schema are refused once the topic has one."""


OLD_STRATEGIES: Final = tuple(_OLD)


def check_schema_policy(name: str, value: object) -> object:
    """Return the value to store; None for a policy that is not set. Raises InvalidConfigurationError."""
    choices: tuple[object, ...] = (True, False)
    if name == STRATEGY:
        choices = (*STRATEGIES, UNDEFINED)
    elif name == OLD_STRATEGY:
        choices = tuple(_OLD)
    if value is not None and not any(
        value is one or (type(value) is str and value == one) for one in choices
    ):
        shown = "true or false" if choices == (True, False) else ", ".join(map(str, choices))
        raise InvalidConfigurationError(f"{name} must be one of {shown}, not {value!r}")
    return None if value == UNDEFINED else value


def check_schema_policies(policies: Mapping[str, Any]) -> None:
    """Check those among the policies of a new namespace; raises InvalidConfigurationError."""
    for name, field in FIELDS.items():
        check_schema_policy(name, policies.get(field))


def policy_of(own: Mapping[str, Any], policies: Mapping[str, Any], broker: SchemaPolicy) -> SchemaPolicy:
    """Return the policy of a topic: its own, then that of its namespace, then the broker's settings.

    A topic's own policies are stored by their names in the path, those of a namespace by Pulsar's.
    """

    def choose(name: str, default: Any, *allowed: Any) -> Any:
        for value in (own.get(name), policies.get(FIELDS[name])):
            if value is not None and value in allowed:
                return value
        return default

    older = _OLD.get(str(policies.get(FIELDS[OLD_STRATEGY])), broker.strategy)
    return SchemaPolicy(
        cast(Strategy, choose(STRATEGY, older, *STRATEGIES)),
        choose(AUTO_UPDATE, broker.auto_update, True, False),
        # As in Pulsar, a broker that enforces it does so everywhere.
        broker.enforced or choose(ENFORCED, False, True, False),
    )
