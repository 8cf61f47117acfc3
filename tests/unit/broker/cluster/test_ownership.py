"""Owners of stores: a store is claimed, fenced and given back, and never stuck."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.cluster.broker_lease import BrokerLease
from anabranch.broker.cluster.decide.store_ownership import holder_name
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.ownership import Ownership, OwnershipOptions
from anabranch.errors import CorruptDataError, HeldError, MetadataError, MissingDataError
from anabranch.metadata import records
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.metadata.records import StoreRecord
from tests.fakes.metadata import FailingStore

PATIENCE_S = 5.0


def broker_record(number: int, generation: int = 1) -> BrokerRecord:
    return BrokerRecord(id=number, url=f"pulsar://b{number}", http_url="", generation=generation)


class LockedStorages:
    """Stores whose locks several brokers contend for; a fenced broker makes no further call."""

    def __init__(self, owners: StoreOwners) -> None:
        self.opened: list[int] = []
        self.name = ""
        self.alive = True
        self._owners = owners

    async def open(self, store: int, name: str = "", fence: str | None = None) -> int:
        await asyncio.sleep(0.01)
        self._owners.opens += 1
        if self._owners.damaged:
            self._owners.damaged -= 1
            raise CorruptDataError("the catalog cannot be read")
        holder = self._owners.holders.get(store)
        if holder is not None and holder is not self:
            if fence is None or fence != holder.name:
                raise HeldError("in use", holder.name)
            holder.die()
            self._owners.fenced.append(fence)
        self.name = name
        self._owners.holders[store] = self
        self.opened.append(store)
        return self._owners.ids.get(store, 0)

    async def checkpoint(self, store: int) -> None:
        await asyncio.sleep(self._owners.checkpoint_s)

    async def close(self, store: int, *, hastily: bool = False) -> None:
        await asyncio.sleep(0.01)
        if self.alive:
            self.opened.remove(store)
            del self._owners.holders[store]

    def die(self) -> None:
        self.alive = False
        for store in [store for store, holder in self._owners.holders.items() if holder is self]:
            del self._owners.holders[store]


class OwningBroker:
    """One broker, as far as owning goes."""

    def __init__(self, owners: StoreOwners, number: int, workers: int) -> None:
        self.memory = MemoryStore(owners.tree)
        self.store = FailingStore(self.memory)
        self.storages = LockedStorages(owners)
        self.directory = Directory(self.store)
        self.told: list[str] = []
        self.failures = 0
        options = OwnershipOptions(self._opened, self._closing, workers, PATIENCE_S)
        self.lease = BrokerLease(self.directory, self.store, broker_record(number, -1))
        self.ownership = Ownership(self.lease, self.directory, self.store, self.storages, options)

    @property
    def record(self) -> BrokerRecord:
        return self.lease.me

    async def start(self) -> OwningBroker:
        await self.directory.start()
        await self.ownership.start()
        return self

    async def stop(self) -> None:
        await self.ownership.stop()
        await self.directory.stop()
        await self.store.close()

    def kill(self) -> None:
        """End the lease and free the locks; the records of this broker stay."""
        self.storages.die()
        self.memory.expire()

    async def _opened(self, number: int) -> None:
        self._fail()
        self.told.append(f"opened {number}")

    async def _closing(self, number: int) -> None:
        self._fail()
        assert number in self.storages.opened
        self.told.append(f"closing {number}")

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise MetadataError("not now")


class StoreOwners:
    """Brokers on one tree of metadata and one set of locks."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.holders: dict[int, LockedStorages] = {}
        self.ids: dict[int, int] = {}
        self.fenced: list[str] = []
        self.opens = 0
        self.damaged = 0
        self.checkpoint_s = 0.01
        # Killed members are kept, so their pending tasks are not collected during the test.
        self.members: list[OwningBroker] = []

    def member(self, number: int, workers: int = 2) -> OwningBroker:
        member = OwningBroker(self, number, workers)
        self.members.append(member)
        return member

    async def survivor(self) -> OwningBroker:
        """OwningBroker 0, after member 1 has died and its store was taken over."""
        survivor, dead = await self.member(0).start(), await self.member(1).start()
        await asyncio.sleep(2 * PATIENCE_S)
        dead.kill()
        await asyncio.sleep(1)
        return survivor

    async def owner(self, store: int) -> StoreRecord:
        found = await MemoryStore(self.tree).get(records.store_path(store))
        assert found is not None
        return records.decode(StoreRecord, found.value)


@pytest.fixture
def owners() -> StoreOwners:
    return StoreOwners()


async def test_a_broker_claims_its_own_store_and_each_owner_has_a_higher_term(owners: StoreOwners) -> None:
    first = await owners.member(0, workers=1).start()
    assert first.storages.opened == [0]
    assert first.told == ["opened 0"]
    assert first.directory.owner_of(0) == first.record
    assert await owners.owner(0) == StoreRecord(owner=0, generation=0, term=1)
    await first.ownership.stop()
    assert first.told == ["opened 0", "closing 0"]
    assert await owners.owner(0) == StoreRecord(owner=None, generation=0, term=1)
    assert await MemoryStore(owners.tree).children(records.BROKERS) == []
    await first.stop()
    second = await owners.member(0, workers=1).start()
    assert await owners.owner(0) == StoreRecord(owner=0, generation=1, term=2)
    await second.stop()


async def test_a_broker_without_others_claims_every_store_there_is(owners: StoreOwners) -> None:
    members = [await owners.member(number, workers=3).start() for number in range(3)]
    for member in members:
        await member.stop()
    alone = await owners.member(0, workers=1).start()
    assert alone.storages.opened == [0, 1, 2]
    assert alone.directory.served() == (0, 1, 2)
    await alone.stop()


async def test_a_holder_whose_lease_is_over_is_ended_before_its_store_is_opened(owners: StoreOwners) -> None:
    survivor, paused = await owners.member(0).start(), await owners.member(1).start()
    await asyncio.sleep(2 * PATIENCE_S)
    paused.memory.expire()
    await asyncio.sleep(1)
    assert owners.fenced == ["broker 1/1"]
    assert not paused.storages.alive
    assert survivor.storages.opened == [0, 1]
    assert survivor.told == ["opened 0", "opened 1"]
    assert await owners.owner(1) == StoreRecord(owner=0, generation=0, term=2)
    await survivor.stop()


async def test_a_living_holder_is_left_alone_though_it_has_published_nothing_yet(owners: StoreOwners) -> None:
    recovering = owners.member(1)
    await recovering.store.put(records.broker_path(1), records.encode(recovering.record), ephemeral=True)
    await recovering.storages.open(0, holder_name(recovering.record))
    waiting = asyncio.ensure_future(owners.member(0).start())
    await asyncio.sleep(10 * PATIENCE_S)
    assert not waiting.done()
    assert owners.fenced == []
    await recovering.storages.close(0)
    await (await waiting).stop()


async def test_a_store_goes_back_to_its_own_broker_when_that_lives_again(owners: StoreOwners) -> None:
    survivor = await owners.survivor()
    assert survivor.storages.opened == [0, 1]
    back = await owners.member(1).start()
    await asyncio.sleep(1)
    assert survivor.told == ["opened 0", "opened 1", "closing 1"]
    assert survivor.storages.opened == [0]
    assert back.storages.opened == [1]
    assert await owners.owner(1) == StoreRecord(owner=1, generation=2, term=3)
    assert owners.fenced == []
    await survivor.stop()
    await back.stop()


async def test_a_store_is_served_until_it_can_be_handed_over_quickly(owners: StoreOwners) -> None:
    survivor = await owners.survivor()
    owners.checkpoint_s = 20.0
    back = owners.member(1)
    starting = asyncio.ensure_future(back.start())
    await asyncio.sleep(10)
    assert survivor.directory.owner_of(1) == survivor.record
    assert survivor.told == ["opened 0", "opened 1"]
    await asyncio.sleep(11)
    assert survivor.told == ["opened 0", "opened 1", "closing 1"]
    assert survivor.directory.owner_of(1) == back.record
    await (await starting).stop()
    await survivor.stop()


async def test_a_store_is_kept_when_its_own_broker_died_again_before_it_could_be_handed_over(
    owners: StoreOwners,
) -> None:
    survivor = await owners.survivor()
    owners.checkpoint_s = 20.0
    back = owners.member(1)
    starting = asyncio.ensure_future(back.start())
    await asyncio.sleep(10)
    starting.cancel()
    back.kill()
    await asyncio.sleep(20)
    assert survivor.told == ["opened 0", "opened 1"]
    assert survivor.directory.owner_of(1) == survivor.record
    await survivor.stop()


async def test_a_store_is_left_to_a_broker_that_is_expected_but_not_for_ever(owners: StoreOwners) -> None:
    early = await owners.member(0).start()
    await asyncio.sleep(PATIENCE_S - 1)
    assert early.storages.opened == [0]
    await asyncio.sleep(2)
    assert early.storages.opened == [0, 1]
    await early.stop()


async def test_a_broker_that_stops_gives_its_stores_to_the_others(owners: StoreOwners) -> None:
    stayer, leaver = await owners.member(0).start(), await owners.member(1).start()
    await asyncio.sleep(2 * PATIENCE_S)
    await leaver.stop()
    await asyncio.sleep(1)
    assert leaver.told == ["opened 1", "closing 1"]
    assert stayer.storages.opened == [0, 1]
    assert owners.fenced == []
    await stayer.stop()


async def test_a_broker_whose_lease_was_over_goes_on_with_the_stores_it_still_holds(
    owners: StoreOwners,
) -> None:
    member = await owners.member(0, workers=1).start()
    opens = owners.opens
    member.memory.lapse()
    assert await MemoryStore(owners.tree).children(records.BROKERS) == []
    await asyncio.sleep(1)
    assert member.directory.owner_of(0) == member.record
    assert owners.opens == opens
    assert member.told == ["opened 0"]
    await member.stop()


@pytest.mark.parametrize("what", ["open", "publish", "tell"])
async def test_a_takeover_that_fails_is_tried_until_it_succeeds(owners: StoreOwners, what: str) -> None:
    survivor, dead = await owners.member(0).start(), await owners.member(1).start()
    await asyncio.sleep(2 * PATIENCE_S)
    owners.damaged = 6 if what == "open" else 0
    survivor.store.refusals = 6 if what == "publish" else 0
    survivor.failures = 6 if what == "tell" else 0
    dead.kill()
    await asyncio.sleep(30)
    assert survivor.storages.opened == [0, 1]
    assert survivor.told == ["opened 0", "opened 1"]
    assert survivor.directory.owner_of(1) == survivor.record
    await survivor.stop()


@pytest.mark.parametrize("what", ["publish", "tell"])
async def test_giving_back_goes_on_when_a_part_of_it_fails(owners: StoreOwners, what: str) -> None:
    survivor = await owners.survivor()
    survivor.store.refusals = 3 if what == "publish" else 0
    survivor.failures = 3 if what == "tell" else 0
    back = await owners.member(1).start()
    await asyncio.sleep(10)
    assert survivor.storages.opened == [0]
    assert back.directory.owner_of(1) == back.record
    await survivor.stop()
    await back.stop()


async def test_a_store_that_was_given_up_gets_no_owner_although_the_first_writes_failed(
    owners: StoreOwners,
) -> None:
    survivor = await owners.survivor()
    survivor.store.refusals = 3
    slow = owners.member(1)
    await slow.store.put(records.broker_path(1), records.encode(slow.record), ephemeral=True)
    await asyncio.sleep(10)
    assert survivor.storages.opened == [0]
    assert (await owners.owner(1)).owner is None
    await survivor.stop()


async def test_a_start_goes_on_when_the_former_owner_withdraws_at_the_same_time(owners: StoreOwners) -> None:
    survivor = await owners.survivor()
    back = owners.member(1)
    back.store.overtaken = {records.store_path(1)}
    await back.start()
    assert back.store.overtaken == set()
    assert (await owners.owner(1)).owner == 1
    await back.stop()
    await survivor.stop()


async def test_a_start_fails_when_the_own_store_cannot_be_opened(owners: StoreOwners) -> None:
    owners.damaged = 1
    member = owners.member(0, workers=1)
    with pytest.raises(CorruptDataError):
        await member.start()
    await member.stop()
    assert await MemoryStore(owners.tree).children(records.BROKERS) == []


async def test_a_stop_does_not_wait_for_ever_for_a_store_that_cannot_be_withdrawn(
    owners: StoreOwners,
) -> None:
    member = await owners.member(0, workers=1).start()
    member.store.refusals = 10_000
    async with asyncio.timeout(60):
        await member.stop()
    assert owners.holders == {}


async def test_other_files_in_the_place_of_a_store_are_not_served(owners: StoreOwners) -> None:
    owners.ids = {0: 7}
    first = await owners.member(0, workers=1).start()
    assert (await owners.owner(0)).store_id == 7
    await first.stop()
    owners.ids = {0: 8}
    again = owners.member(0, workers=1)
    with pytest.raises(MissingDataError, match="anabranch restore"):
        await again.start()
    assert again.storages.opened == []
    await again.stop()
    assert (await owners.owner(0)).store_id == 7
    owners.ids = {0: 7}
    restored = await owners.member(0, workers=1).start()
    assert restored.storages.opened == [0]
    await restored.stop()


async def test_a_lost_store_does_not_keep_the_others_from_being_served(owners: StoreOwners) -> None:
    owners.ids = {0: 7, 1: 8}
    members = [await owners.member(number).start() for number in range(2)]
    for member in members:
        await member.stop()
    owners.ids[1] = 9
    members = [await owners.member(number).start() for number in range(2)]
    await asyncio.sleep(2 * PATIENCE_S)
    assert [member.storages.opened for member in members] == [[0], []]
    owners.ids[1] = 8
    await asyncio.sleep(60)
    assert [member.storages.opened for member in members] == [[0], [1]]
    for member in members:
        await member.stop()
