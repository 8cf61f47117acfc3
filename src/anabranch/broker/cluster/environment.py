"""The outside world of one broker, as values that its composition root chooses."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from anabranch.broker.catalog.stores import StorageOf
from anabranch.broker.cluster.data_plane import DataPlane
from anabranch.clock import Clock
from anabranch.failpoints import Failpoints
from anabranch.metadata.store import MetadataStore
from anabranch.security.gate import Gate
from anabranch.security.peer_secrets import SecretSource
from anabranch.timings import Timings


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """Storage, metadata, time, randomness, injected faults, secrets and the gate of callers."""

    storage_of: StorageOf
    store: MetadataStore
    clock: Clock
    rng: random.Random
    failpoints: Failpoints
    secrets: SecretSource
    timings: Timings = field(default_factory=Timings)
    gate: Gate = field(default_factory=Gate)
    ordered_delays: bool = False
    """Whether Exclusive and Failover wait for delivery times too, for tests with slow keys."""
    data_plane: DataPlane | None = None
    """Holds the messages of all segments, if this broker has no logs of its own."""
