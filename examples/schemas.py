"""Typed values: a producer and a consumer of orders, a newer version of the type, and a consumer of anything.

Start `anabranch serve`, then `python examples/schemas.py`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from anabranch import AsyncClient, Schema


@dataclass
class Order:
    """The type of the values; `note` came later, so it has a default."""

    item: str
    count: int
    note: str | None = None


async def main(url: str = "pulsar://127.0.0.1:6650") -> None:
    async with AsyncClient(url) as client:
        orders = Schema.avro(Order)
        producer = await client.create_producer("typed-orders", schema=orders)
        await producer.send(Order("tea", 2), key="alice")
        await producer.send(None, key="alice")

        consumer = await client.subscribe_queue(
            "typed-orders", "billing", schema=orders, initial_position="earliest"
        )
        for _ in range(2):
            message = await consumer.receive(10)
            order = message.value
            print("deleted" if order is None else f"{order.count} x {order.item}")
            await consumer.acknowledge(message)

        anything = await client.subscribe_queue(
            "typed-orders", "audit", schema=Schema.auto_consume(), initial_position="earliest"
        )
        print((await anything.receive(10)).value)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
