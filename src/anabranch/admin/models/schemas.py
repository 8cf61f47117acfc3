"""Bodies about the schemas of topics."""

from __future__ import annotations

from anabranch.admin.models.body import Body


class PostedSchema(Body, frozen=True, kw_only=True):
    """A schema to add, to find or to compare; `schema` is its definition as text."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


class SchemaInfo(Body, frozen=True, kw_only=True):
    """One version of a topic's schema."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: dict[str, str] = {}


class AllSchemas(Body, frozen=True, kw_only=True):
    """The versions of a topic's schema, oldest first."""

    get_schema_responses: list[SchemaInfo] = []


class SchemaVersion(Body, frozen=True, kw_only=True):
    """The number of a version; -1 for none."""

    version: int


class SchemaCompatibility(Body, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a schema may become the next version, and if not, why."""

    compatibility: bool
    schema_compatibility_strategy: str
    reason: str = ""
