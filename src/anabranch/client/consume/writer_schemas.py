"""The schemas that entries were written with, for consumers whose schema decodes by them.

An entry waits in its place until the schema of its writer is known. A schema is asked for once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from anabranch.client.net.schemas import TopicSchema, look_up_schema
from anabranch.client.options import log
from anabranch.client.schema import Schema
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.protocol.schema_stamps import schema_version_of
from anabranch.schemas.definitions import Definition
from anabranch.schemas.schema_errors import SchemaError

if TYPE_CHECKING:
    from anabranch.client.consume.inbox import Inbox
    from anabranch.client.consume.segment_consumer import SegmentConsumer

Decode = Callable[[bytes], Any]


class WriterSchemas:
    """Chooses the function that decodes the values of each entry of a consumer."""

    def __init__(self, home: Inbox[Any], schema: Schema[Any]) -> None:
        self._home, self._schema = home, schema
        self._decoders: dict[bytes, Decode] = {}
        """By version."""
        self._loading: dict[bytes, list[SegmentConsumer]] = {}
        """The segments whose next entry waits for a version."""

    @classmethod
    def needed_by(cls, home: Inbox[Any]) -> WriterSchemas | None:
        """The schemas for a consumer; None if its own schema is enough."""
        schema = home.schema
        return cls(home, schema) if isinstance(schema, Schema) and schema.by_writer else None

    def waits(self, source: SegmentConsumer) -> bool:
        """Whether the next entry of a segment has to wait; the segment is ready again when it need not."""
        entry = source.entries[0]
        try:
            version = schema_version_of(entry.data)
        except AnabranchError:
            # The inbox finds the same problem when it decodes the entry.
            return False
        decode = self._decoders.get(version)
        if decode is None and not version:
            decode = self._decoders[version] = self._decoder(None)
        if decode is not None:
            entry.decode = decode
            return False
        if version not in self._loading:
            self._loading[version] = []
            self._home.tasks.start(self._load(version), f"load a schema of {self._home.topic}")
        self._loading[version].append(source)
        return True

    async def _load(self, version: bytes) -> None:
        pool, topic = self._home.pool, self._home.topic
        name = TopicName.parse(topic)
        try:
            found = await pool.retry(
                lambda: look_up_schema(pool, name, version), f"asking for a schema of {topic}"
            )
            self._decoders[version] = self._decoder(found, version)
        except AnabranchError as error:
            log.warning("%s: the schema version %s cannot be read: %s", topic, version.hex(), error)
            self._decoders[version] = _refusing(f"the schema of the writer cannot be read: {error}")
        for source in self._loading.pop(version):
            if source.entries:
                self._home.ready(source)

    def _decoder(self, found: TopicSchema | None, version: bytes = b"") -> Decode:
        if found is None and version:
            return _refusing(f"the topic has no version {version.hex()} of its schema any more")
        writer = None if found is None else Definition(found.kind, found.data, found.properties)
        try:
            return self._schema.decoder(writer)
        except Exception as error:
            # The definition is another client's, and packages that read it have errors of no common type.
            return _refusing(f"the schema of the writer cannot be used: {error}")


def _refusing(reason: str) -> Decode:
    def refuse(data: bytes) -> NoReturn:
        raise SchemaError(reason)

    return refuse
