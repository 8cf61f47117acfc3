"""Methods about the registered schemas of topics."""

from __future__ import annotations

from anabranch.admin.client import calls
from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, schemas_of
from anabranch.admin.models.schemas import (
    PostedSchema,
    SchemaCompatibility,
    SchemaInfo,
    SchemaVersion,
)
from anabranch.arguments import of_kind


class AsyncSchemaMethods(AsyncHttpClient):
    """Methods about the schemas of topics of any kind."""

    async def schema(
        self, topic: TopicLike, version: int | None = None, *, timeout: float | None = None
    ) -> SchemaInfo:
        """Return one version of the schema of a topic, the newest by default; NotFoundError if there is none.

        >>> from anabranch.admin.models.schemas import PostedSchema
        >>> await admin.add_schema("orders", PostedSchema(type="STRING"))
        SchemaVersion(version=0)
        >>> (await admin.schema("orders")).type
        'STRING'
        """
        on = schemas_of(topic)
        request = calls.SCHEMA(on) if version is None else calls.SCHEMA_VERSION(on, str(version))
        return await self.send(request, timeout)

    async def schemas(self, topic: TopicLike, *, timeout: float | None = None) -> list[SchemaInfo]:
        """Return all versions of the schema of a topic, the oldest first."""
        found = await self.send(calls.SCHEMAS(schemas_of(topic)), timeout)
        return found.get_schema_responses

    async def add_schema(
        self, topic: TopicLike, schema: PostedSchema, *, timeout: float | None = None
    ) -> SchemaVersion:
        """Add a version unless the topic has it; ConflictError if it is not compatible."""
        return await self.send(calls.ADD_SCHEMA(schemas_of(topic), body=_posted(schema)), timeout)

    async def find_schema(
        self, topic: TopicLike, schema: PostedSchema, *, timeout: float | None = None
    ) -> SchemaVersion:
        """Return the version that a schema has; -1 if the topic does not have it."""
        return await self.send(calls.FIND_SCHEMA(schemas_of(topic), body=_posted(schema)), timeout)

    async def check_schema(
        self, topic: TopicLike, schema: PostedSchema, *, timeout: float | None = None
    ) -> SchemaCompatibility:
        """Return whether a schema may become the next version, and if not, why."""
        return await self.send(
            calls.CHECK_SCHEMA(schemas_of(topic), body=_posted(schema)),
            timeout,
        )

    async def delete_schema(
        self, topic: TopicLike, *, force: bool = False, timeout: float | None = None
    ) -> SchemaVersion:
        """Delete the schema of a topic; the answer is -1 if it has none.

        Stored messages still find the versions that wrote them; `force` deletes these definitions too.
        """
        return await self.send(calls.DELETE_SCHEMA(schemas_of(topic), query={"force": force}), timeout)


def _posted(schema: PostedSchema) -> PostedSchema:
    of_kind("schema", schema, PostedSchema, "a PostedSchema")
    return schema
