"""The checked arguments of the three ways to consume, one frozen value each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch.aio import Backoff
from anabranch.client.options import DeadLetter, InitialPosition
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import TopicName

OnAssignment = Callable[[tuple[str, ...], tuple[str, ...]], None]
"""Called with the names of the segments added and removed."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The arguments of `AsyncClient.subscribe_stream`, checked."""

    topic: TopicName
    subscription: str
    initial_position: InitialPosition
    name: str | None
    receiver_queue_size: int | None
    ack_group_s: float
    ack_receipts: bool
    subscription_properties: Mapping[str, str] | None
    properties: Mapping[str, str] | None
    on_assignment: OnAssignment | None


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The arguments of `AsyncClient.subscribe_queue`, checked."""

    topic: TopicName
    subscription: str
    initial_position: InitialPosition
    name: str | None
    receiver_queue_size: int
    ack_group_s: float
    ack_group_size: int
    ack_receipts: bool
    subscription_properties: Mapping[str, str] | None
    properties: Mapping[str, str] | None
    priority: int
    processing_s: float | None
    redelivery: Backoff
    dead_letter: DeadLetter | None


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """The arguments of `AsyncClient.create_checkpoint_consumer`, checked."""

    topic: TopicName
    start: Checkpoint
    group: str | None
    name: str | None
    receiver_queue_size: int | None
    properties: Mapping[str, str] | None
    fail_on_data_loss: bool
