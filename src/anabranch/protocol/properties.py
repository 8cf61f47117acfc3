"""The keys of producer and consumer metadata that client and broker agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from anabranch.protocol.pb import pulsar_pb2 as pb

SETTLE: Final = "anabranch.settle"
"""In PRODUCER: only return the stored sequence id of this producer name, also in a sealed segment."""

START_INDEX: Final = "anabranch.start_index"
"""In a reader's SUBSCRIBE: start at the entry that holds the message with this index."""

BUCKET_HASHES: Final = "anabranch.bucket_hashes"
"""In a reader's SUBSCRIBE: lowest and highest bucket hash; entries with other hashes lack their payload."""

MANAGED: Final = "__pulsar.v5.managed"
"""Pulsar's property of clients that follow a classic topic when it becomes a scalable one."""


def pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    """Return the properties as commands carry them."""
    return [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
