"""The schema of a producer: registered when the producer opens, and stamped on each of its entries."""

from __future__ import annotations

from functools import partial
from typing import Any

from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.net.schemas import definition_of_codec, register_schema, to_wire
from anabranch.client.schema import Codec
from anabranch.errors import TopicNotFoundError
from anabranch.protocol.pb import pulsar_pb2 as pb


class ProducerSchema:
    """A schema and the version that the topic gave it; without a definition nothing is registered."""

    def __init__(self, codec: Codec[Any]) -> None:
        definition = definition_of_codec(codec)
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

    def registered(self, reply: pb.CommandProducerSuccess) -> None:
        """Note the version in the answer; a topic that was created anew may have given another."""
        if self._wire is not None and reply.schema_version:
            self.version = reply.schema_version
