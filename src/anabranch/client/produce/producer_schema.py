"""The schema of a producer: registered when the producer opens, and stamped on each of its entries."""

from __future__ import annotations

from functools import partial
from typing import Any

from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.net.topics.schemas import definition_of_codec, register_schema, to_wire
from anabranch.client.schema import Codec
from anabranch.errors import InvalidConfigurationError, TopicNotFoundError
from anabranch.protocol.pb import pulsar_pb2 as pb


class ProducerSchema:
    """A schema and the version that the topic gave it; without a definition nothing is registered."""

    def __init__(self, codec: Codec[Any]) -> None:
        definition = definition_of_codec(codec)
        if definition is not None and definition.kind == "AutoConsume":
            raise InvalidConfigurationError(
                "Schema.auto_consume() is for consumers; give a producer the schema of its values"
            )
        self._wire = None if definition is None else to_wire(definition)
        self.version = b""

    async def register(self, pool: ConnectionPool, layout: TopicLayout, deadline: Deadline) -> None:
        """Get the version from the owner of a segment; raises IncompatibleSchemaError."""
        active = layout.layout.active
        if self._wire is None or not active:
            return
        topic, owner = layout.segment_topic(active[0]), layout.owners.get(active[0].id)
        try:
            self.version = await pool.retry(
                partial(register_schema, pool, topic, owner, self._wire),
                f"registering the schema of {layout.name}",
                within_s=deadline.left_s,
            )
        except TopicNotFoundError:
            # Pulsar opens a segment for its first producer, whose registration brings the version.
            return

    def describe(self, command: pb.CommandProducer) -> None:
        """Add the schema to a registration."""
        if self._wire is not None:
            command.schema.CopyFrom(self._wire)

    def registered(self, reply: pb.CommandProducerSuccess) -> bytes:
        """Note and return the version in the answer; empty without a schema or a version.

        A topic that was deleted and created again may have given another version, and topics of Pulsar that
        are segments number their versions apart.
        """
        if self._wire is None:
            return b""
        self.version = reply.schema_version or self.version
        return reply.schema_version
