# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about the registered schemas of topics."""

from __future__ import annotations

from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import TopicLike, ask, get, schema_path
from anabranch.admin.models.schemas import (
    AllSchemas,
    PostedSchema,
    SchemaCompatibility,
    SchemaInfo,
    SchemaVersion,
)
from anabranch.arguments import of_kind


class SchemaMethods(HttpClient):
    """Methods about the schemas of topics of any kind."""

    def schema(
        self, topic: TopicLike, version: int | None = None, *, timeout: float | None = None
    ) -> SchemaInfo:
        """One version of the schema of a topic, the newest by default; NotFoundError if there is none.

        >>> from anabranch.admin.models.schemas import PostedSchema
        >>> admin.add_schema("orders", PostedSchema(type="STRING"))
        SchemaVersion(version=0)
        >>> (admin.schema("orders")).type
        'STRING'
        """
        parts = () if version is None else (str(version),)
        return self.send(get(schema_path(topic, "schema", *parts), SchemaInfo), timeout)

    def schemas(self, topic: TopicLike, *, timeout: float | None = None) -> list[SchemaInfo]:
        """All versions of the schema of a topic, the oldest first."""
        found = self.send(get(schema_path(topic, "schemas"), AllSchemas), timeout)
        return found.get_schema_responses

    def add_schema(
        self, topic: TopicLike, schema: PostedSchema, *, timeout: float | None = None
    ) -> SchemaVersion:
        """Add a version unless the topic has it; ConflictError if it is not compatible."""
        return self.send(
            ask("POST", schema_path(topic, "schema"), SchemaVersion, body=_posted(schema)), timeout
        )

    def find_schema(
        self, topic: TopicLike, schema: PostedSchema, *, timeout: float | None = None
    ) -> SchemaVersion:
        """The version that a schema has; -1 if the topic does not have it."""
        return self.send(
            ask("POST", schema_path(topic, "version"), SchemaVersion, body=_posted(schema)), timeout
        )

    def check_schema(
        self, topic: TopicLike, schema: PostedSchema, *, timeout: float | None = None
    ) -> SchemaCompatibility:
        """Whether a schema may become the next version, and if not, why."""
        return self.send(
            ask("POST", schema_path(topic, "compatibility"), SchemaCompatibility, body=_posted(schema)),
            timeout,
        )

    def delete_schema(
        self, topic: TopicLike, *, force: bool = False, timeout: float | None = None
    ) -> SchemaVersion:
        """Let a topic begin anew without a schema; the answer is -1 if it has none.

        Stored messages still find the versions that wrote them; `force` deletes these definitions too.
        """
        return self.send(
            ask("DELETE", schema_path(topic, "schema"), SchemaVersion, query={"force": force}), timeout
        )


def _posted(schema: PostedSchema) -> PostedSchema:
    of_kind("schema", schema, PostedSchema, "a PostedSchema")
    return schema
