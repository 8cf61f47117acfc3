"""The keys of producer and consumer metadata that client and broker agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from anabranch.protocol.pb import pulsar_pb2 as pb

SETTLE: Final = "anabranch.settle"
"""Of a PRODUCER that only asks what is stored of a name, also in a sealed segment."""

START_INDEX: Final = "anabranch.start_index"
"""Of a reader's SUBSCRIBE: start at the entry that holds this message of the log."""

MANAGED: Final = "__pulsar.v5.managed"
"""Pulsar's, of clients that follow a classic topic when it becomes a scalable one."""


def pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    """Properties as commands carry them."""
    return [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
