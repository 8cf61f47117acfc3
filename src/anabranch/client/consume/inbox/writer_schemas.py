"""The schemas that entries were written with, for consumers whose schema decodes by them.

An entry waits in its place until the schema of its writer is known. A schema is asked for once. Versions
are those of the topic, or of the segment's own topic where Apache Pulsar holds the segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.net.topics.schemas import TopicSchema, has_own_schemas, look_up_writer
from anabranch.client.options import log
from anabranch.client.schema import Schema
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.protocol.schema_stamps import schema_version_of
from anabranch.schemas.definitions import Definition
from anabranch.schemas.schema_errors import SchemaError


class _Decoders(NamedTuple):
    """The functions that decode the entries of one version."""

    value: Callable[[bytes], Any]
    key: Callable[[bytes | None], Any] | None = None
    """For a key that is the first half of the value."""


class _Versions:
    """The decoders of one numbering of schemas, and the segments whose next entry waits for one of them."""

    __slots__ = ("decoders", "waiting")

    def __init__(self) -> None:
        self.decoders: dict[bytes, _Decoders] = {}
        self.waiting: dict[bytes, list[SegmentConsumer]] = {}


class WriterSchemas:
    """Chooses the functions that decode the values of each entry of a consumer."""

    def __init__(
        self,
        context: ConsumerContext,
        schema: Schema[Any],
        sources: Mapping[int, SegmentConsumer],
        ready: Callable[[SegmentConsumer], None],
    ) -> None:
        """`sources` are the segments that are read; `ready` gets one whose next entry can be decoded."""
        self._context, self._schema, self._sources, self._ready = context, schema, sources, ready
        self._of_topic = _Versions()
        self._of_segment: dict[str, _Versions] = {}
        """By the name of the segment's topic; most segments have those of the topic."""

    @classmethod
    def needed_by(
        cls,
        context: ConsumerContext,
        sources: Mapping[int, SegmentConsumer],
        ready: Callable[[SegmentConsumer], None],
    ) -> WriterSchemas | None:
        """Return the schemas for a consumer; None if its own schema is enough."""
        schema = context.schema
        if isinstance(schema, Schema) and schema.by_writer:
            return cls(context, schema, sources, ready)
        return None

    def waits(self, source: SegmentConsumer) -> bool:
        """Return whether the next entry of a segment has to wait; the segment is ready again afterwards."""
        entry = source.entries[0]
        try:
            version = schema_version_of(entry.data)
        except AnabranchError:
            # The inbox finds the same problem when it decodes the entry.
            return False
        versions = self._of_segment.get(source.topic) or self._add(source.topic)
        found = versions.decoders.get(version)
        if found is None and not version:
            found = versions.decoders[version] = self._decoders(None)
        if found is not None:
            entry.decode, entry.decode_key = found
            return False
        if version not in versions.waiting:
            versions.waiting[version] = []
            load = self._load(versions, version, source.topic)
            self._context.tasks.start(load, f"load a schema of {self._context.topic}")
        versions.waiting[version].append(source)
        return True

    def _add(self, segment_topic: str) -> _Versions:
        # A consumer lives through many splits, so segments that it has left are forgotten.
        left = self._of_segment.keys() - {source.topic for source in self._sources.values()}
        for name in left:
            del self._of_segment[name]
        own = has_own_schemas(TopicName.parse(self._context.topic), segment_topic)
        found = self._of_segment[segment_topic] = _Versions() if own else self._of_topic
        return found

    async def _load(self, versions: _Versions, version: bytes, segment_topic: str) -> None:
        pool, topic = self._context.pool, self._context.topic
        name = TopicName.parse(topic)
        try:
            found = await pool.retry(
                lambda: look_up_writer(pool, name, segment_topic, version), f"asking for a schema of {topic}"
            )
            versions.decoders[version] = self._decoders(found, version)
        except AnabranchError as error:
            log.warning("%s: the schema version %s cannot be read: %s", topic, version.hex(), error)
            versions.decoders[version] = _refusing(f"the schema of the writer cannot be read: {error}")
        for source in versions.waiting.pop(version):
            if source.entries:
                self._ready(source)

    def _decoders(self, found: TopicSchema | None, version: bytes = b"") -> _Decoders:
        if found is None and version:
            return _refusing(f"the topic has no version {version.hex()} of its schema any more")
        writer = None if found is None else Definition(found.kind, found.data, found.properties)
        try:
            return _Decoders(self._schema.decoder(writer), self._schema.key_decoder(writer))
        except Exception as error:
            # The definition is another client's, and packages that read it have errors of no common type.
            return _refusing(f"the schema of the writer cannot be used: {error}")


def _refusing(reason: str) -> _Decoders:
    def refuse(data: bytes) -> NoReturn:
        raise SchemaError(reason)

    return _Decoders(refuse)
