"""The outside world of one broker, as values that its composition root chooses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.broker.catalog.stores import StorageOf
from anabranch.broker.engine.embedded import EmbeddedEngine, EngineParts
from anabranch.broker.engine.port import Engine
from anabranch.clock import Clock
from anabranch.failpoints import Failpoints
from anabranch.metadata.store import MetadataStore
from anabranch.security.gate import Gate
from anabranch.security.peer_secrets import SecretSource
from anabranch.timings import Timings


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """Storage, metadata, time, randomness, injected faults, secrets, the gate of callers and the engine."""

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
    engine: Callable[[EngineParts], Engine] = EmbeddedEngine
    """Makes the engine that holds the messages of all segments."""
