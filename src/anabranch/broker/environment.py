"""The values that one broker is built from: its environment and its endpoint."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from anabranch.broker.catalog.stores import StorageOf
from anabranch.clock import Clock
from anabranch.config import BrokerConfig
from anabranch.failpoints import Failpoints
from anabranch.metadata.store import MetadataStore
from anabranch.transport.dialing import listen
from anabranch.transport.pump import Pump


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """The outside world of one broker: storage, metadata, time, randomness and injected faults."""

    storage_of: StorageOf
    store: MetadataStore
    clock: Clock
    rng: random.Random
    failpoints: Failpoints


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a broker, and how it accepts connections."""

    url: str
    """The address at which clients reach this broker and no other."""
    http_url: str
    listen: Callable[[Callable[[], Pump]], Awaitable[Sequence[asyncio.AbstractServer]]]
    """Accept connections from now on, with one pump from the given factory for each."""


def configured_endpoint(config: BrokerConfig) -> Endpoint:
    """The endpoint of a broker that listens on the configured host and port, which must not be 0."""

    async def accept(factory: Callable[[], Pump]) -> Sequence[asyncio.AbstractServer]:
        return [await listen(config.host, config.port, factory)]

    return Endpoint(config.url_of("pulsar", config.port), config.url_of("http", config.http_port), accept)
