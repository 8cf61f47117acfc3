"""The living brokers and the owners of stores, as one broker knows them."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.cluster.directory import RETRY_S, Directory
from anabranch.errors import MetadataError
from anabranch.metadata import records
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.metadata.records import StoreRecord
from tests.fakes.metadata import FailingStore


async def put_broker(store: MemoryStore, id_: int, generation: int) -> None:
    record = BrokerRecord(
        id=id_, url=f"pulsar://b{id_}:1", http_url=f"http://b{id_}:2", generation=generation
    )
    await store.put(records.broker_path(id_), records.encode(record), ephemeral=True)


async def put_store(store: MemoryStore, id_: int, owner: int | None, generation: int) -> None:
    record = StoreRecord(owner=owner, generation=generation, term=1)
    await store.put(records.store_path(id_), records.encode(record))


async def test_an_owner_counts_while_the_start_that_took_the_store_lives() -> None:
    tree = MemoryTree()
    mine, theirs = MemoryStore(tree), MemoryStore(tree)
    directory = Directory(mine)
    await directory.start()
    seen: list[tuple[int, ...]] = []
    undo = directory.watch(lambda: seen.append(directory.served()))
    await put_store(mine, 0, None, 0)
    await put_broker(theirs, 4, generation=7)
    await put_store(mine, 1, 4, generation=7)
    await put_store(mine, 2, 4, generation=6)
    await asyncio.sleep(0.01)
    owner = directory.owner_of(1)
    assert owner is not None
    assert owner.url == "pulsar://b4:1"
    assert directory.owner_of(0) is directory.owner_of(2) is directory.owner_of(9) is None
    assert directory.served() == (1,)
    assert sorted(directory.stores) == [0, 1, 2]
    theirs.expire()
    await asyncio.sleep(0.01)
    assert not directory.served()
    assert seen[-2:] == [(1,), ()]
    undo()
    await put_broker(mine, 5, generation=8)
    await asyncio.sleep(0.01)
    assert 5 in directory.brokers
    assert seen[-1] == ()
    await directory.stop()


async def test_a_change_is_seen_although_the_first_read_failed() -> None:
    tree = MemoryTree()
    mine, theirs = FailingStore(MemoryStore(tree)), MemoryStore(tree)
    directory = Directory(mine)
    await directory.start()
    mine.down = True
    await put_broker(theirs, 1, generation=1)
    await asyncio.sleep(0.01)
    with pytest.raises(MetadataError):
        # The directory pauses after its own failure; this call fails during that pause.
        await directory.look()
    mine.down = False
    await asyncio.sleep(2 * RETRY_S)
    assert 1 in directory.brokers
    await directory.stop()
