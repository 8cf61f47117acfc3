"""Streams of Spark that run to their end, and topics of numbers for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark.errors import StreamingQueryException

from anabranch import AsyncClient, AsyncProducer, Client
from simulation.harness.process import BrokerProcess
from tests.harness.stored_messages import numbers_by_key

KEYS = 37
STARTS_MAX = 5
END_S = 300


def never() -> bool:
    return False


def run_to_end(stream: Any, fault_happened: Callable[[], bool] = never) -> Any:
    """Run a DataStreamWriter to its end and return the query; None if a fault has ended it."""
    for _ in range(STARTS_MAX):
        query = stream.start()
        try:
            assert query.awaitTermination(END_S)
            return query
        except StreamingQueryException as error:
            if fault_happened():
                return None
            # Spark gives a Python process ten seconds to start, which a busy machine may exceed.
            if "failed to connect back" not in str(error):
                raise
    raise AssertionError("Spark did not start its Python processes in time")


def publish_numbers(broker: BrokerProcess, topic: str, numbers: Sequence[int]) -> None:
    """Send numbers, each to its key; they are stored when this returns."""

    async def send() -> None:
        async with AsyncClient(broker.url) as client:
            producer: AsyncProducer[bytes] = await client.create_producer(topic)
            await producer.send_many([str(n).encode() for n in numbers], [f"key-{n % KEYS}" for n in numbers])

    asyncio.run(send())


def check_numbers(broker: BrokerProcess, topic: str, numbers: Iterable[int]) -> None:
    """Each number is in the topic once, and the numbers of a key ascend."""
    with Client(broker.url) as client:
        found = numbers_by_key(client, topic)
    assert sorted(number for part in found.values() for number in part) == sorted(numbers)
    assert all(part == sorted(part) for part in found.values())
