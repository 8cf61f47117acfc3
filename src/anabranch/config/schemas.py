"""The settings about schemas that hold where neither a topic nor its namespace has a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from anabranch.config.fields import check_choice, setting
from anabranch.schemas.compatibility import STRATEGIES, Strategy
from anabranch.schemas.policies import SchemaPolicy


@dataclass(frozen=True, kw_only=True)
class SchemaConfig:
    """Which schemas producers may add to a topic, and with which ones consumers may read it."""

    schema_compatibility_strategy: str = setting(
        "FULL",
        f"How the next schema of a topic must fit earlier ones: {', '.join(STRATEGIES[:5])}, "
        "or the last three with _TRANSITIVE.",
        pulsar="schemaCompatibilityStrategy",
    )
    is_allow_auto_update_schema: bool = setting(
        True,
        "Producers may add schemas to a topic; otherwise only administrators do.",
        pulsar="isAllowAutoUpdateSchemaEnabled",
    )
    schema_validation_enforced: bool = setting(
        False,
        "Producers without a schema are refused once the topic has one.",
        pulsar="isSchemaValidationEnforced",
    )

    def schema_policy(self) -> SchemaPolicy:
        check_choice("schema_compatibility_strategy", self.schema_compatibility_strategy, STRATEGIES)
        strategy = cast(Strategy, self.schema_compatibility_strategy)
        return SchemaPolicy(strategy, self.is_allow_auto_update_schema, self.schema_validation_enforced)
