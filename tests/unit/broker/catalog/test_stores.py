"""Several stores seen as one storage, and the logs of a store that moves to another broker."""

from __future__ import annotations

import pytest

from anabranch.broker.catalog.stores import Stores
from anabranch.errors import NotOwnerError, ServiceNotReadyError
from anabranch.ledger.memory import MemoryStorage
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import TOPIC, error_of, settle


async def test_a_log_lives_in_the_store_it_was_made_in() -> None:
    stored = {number: MemoryStorage() for number in range(3)}
    stores = Stores(lambda number: stored[number])
    await stores.open(0)
    await stores.open(2)
    made = await stores.create("a", 2)
    assert await stores.create("a", 0) is made
    await stores.create("b", 0)
    assert stores.names() == ["a", "b"]
    assert [stores.store_of(name) for name in ("a", "b", "c")] == [2, 0, None]
    assert stores.get("a") is made
    with pytest.raises(NotOwnerError):
        await stores.create("c", 1)
    await stores.close(2)
    assert stores.names() == ["b"]
    assert stores.get("a") is None
    await stores.open(2)
    assert stores.store_of("a") == 2
    await stores.delete("a")
    await stores.delete("never there")
    assert stored[2].names() == []


async def test_clients_of_a_store_that_moves_are_sent_away_to_look_for_it(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe()
    segment = brokers[0].logs.require(TopicName.parse(TOPIC))
    client.publish(b"1", 0)
    await client.receipt()
    brokers[0].logs.leave(segment.store)
    await brokers[0].stores.close(segment.store)
    assert (await client.expect(pb.CommandCloseProducer)).producer_id == 1
    await client.expect(pb.CommandCloseConsumer)
    with pytest.raises(ServiceNotReadyError, match="moves to another broker"):
        await segment.subscription("other", durable=True, ordinal=0)
    # The store has no owner for now; the client is asked to try again later.
    assert error_of(await client.producer(producer_id=2)) == pb.ServiceNotReady
    await settle()
    await brokers[0].stores.open(segment.store)
    assert (await client.producer(producer_id=3)).producer_name
