"""Locks of homes and numbers of control processes in the metadata store."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.control.homes import HomeLock, claim_number
from anabranch.control.quiet_periods import LATE_S, QuietPeriods
from anabranch.control.stored_secret import StoredPeerSecret, installation_id
from anabranch.errors import ConnectError, HeldError, MetadataError
from anabranch.metadata.memory import MemoryStore, MemoryTree
from anabranch.model.names import TopicName


async def test_a_home_has_one_holder_until_its_session_ends() -> None:
    tree = MemoryTree()
    first, second = MemoryStore(tree), MemoryStore(tree)
    home, rival = HomeLock(first, 0), HomeLock(second, 0)
    await home.open("broker 0/1")
    with pytest.raises(HeldError) as refused:
        await rival.open("broker 1/2")
    assert refused.value.holder == "broker 0/1"
    first.expire()
    await rival.open("broker 1/2")


async def test_a_home_that_is_closed_is_free_for_others() -> None:
    tree = MemoryTree()
    home, rival = HomeLock(MemoryStore(tree), 0), HomeLock(MemoryStore(tree), 0)
    await home.open("broker 0/1")
    await home.close()
    await rival.open("broker 1/2")


async def test_a_late_close_leaves_the_lock_of_the_next_holder() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    home, rival, third = HomeLock(store, 0), HomeLock(MemoryStore(tree), 0), HomeLock(MemoryStore(tree), 0)
    await home.open("broker 0/1")
    store.lapse()
    await rival.open("broker 1/2")
    await home.close()
    with pytest.raises(HeldError):
        await third.open("broker 2/3")


class LosingStore(MemoryStore):
    """A store that loses the answers of some calls."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.lost_put = 0
        """Which of the next puts, from 1 on."""
        self.deletions_refused = 0

    async def put(
        self, path: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False
    ) -> int:
        version = await super().put(path, value, expected=expected, ephemeral=ephemeral)
        self.lost_put -= 1
        if self.lost_put == 0:
            raise MetadataError("the answer was lost")
        return version

    async def delete(self, path: str, *, expected: int | None = None) -> None:
        if self.deletions_refused:
            self.deletions_refused -= 1
            raise MetadataError("no answer")
        await super().delete(path, expected=expected)


async def test_a_process_that_lives_on_gives_a_home_back_although_the_store_did_not_answer() -> None:
    tree = MemoryTree()
    store = LosingStore(tree)
    home = HomeLock(store, 0)
    await home.open("broker 0/1")
    store.deletions_refused = 3
    await home.close(hastily=True)
    await HomeLock(MemoryStore(tree), 0).open("broker 1/2")


async def test_a_process_that_ends_does_not_wait_for_the_store() -> None:
    store = LosingStore(MemoryTree())
    home = HomeLock(store, 0)
    await home.open("broker 0/1")
    store.deletions_refused = 10**9
    async with asyncio.timeout(1):
        await home.close()


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_home_that_was_not_opened_is_not_held(lost: int) -> None:
    """The answer about the lock is lost, or the lock is taken and the answer about its mark is lost."""
    tree = MemoryTree()
    store = LosingStore(tree)
    store.lost_put = lost
    with pytest.raises(MetadataError):
        await HomeLock(store, 0).open("broker 0/1")
    await HomeLock(MemoryStore(tree), 0).open("broker 1/2")


async def test_numbers_are_unique_among_living_processes_and_used_again() -> None:
    tree = MemoryTree()
    stores = [MemoryStore(tree) for _ in range(3)]
    assert [await claim_number(store, "pulsar://here") for store in stores] == [0, 1, 2]
    stores[1].expire()
    assert await claim_number(MemoryStore(tree), "pulsar://there") == 1


async def test_all_processes_share_one_secret() -> None:
    tree = MemoryTree()
    first = await StoredPeerSecret.read(MemoryStore(tree))
    second = await StoredPeerSecret.read(MemoryStore(tree))
    assert first.load() == second.load()
    assert len(first.load().current) == 32


async def test_all_processes_of_a_store_are_one_installation() -> None:
    tree = MemoryTree()
    assert await installation_id(MemoryStore(tree)) == await installation_id(MemoryStore(tree))
    assert await installation_id(MemoryStore(tree)) != await installation_id(MemoryStore(MemoryTree()))


async def waited_s(quiet: QuietPeriods) -> float:
    """Seconds until a call about a subscription may leave."""
    began_s = asyncio.get_running_loop().time()
    async with quiet.call(TopicName.parse("orders")):
        return asyncio.get_running_loop().time() - began_s


async def test_the_next_holder_waits_after_a_session_that_ended_without_goodbye() -> None:
    tree = MemoryTree()
    first, quiet, next_quiet = MemoryStore(tree), QuietPeriods(), QuietPeriods()
    await HomeLock(first, 0, quiet).open("broker 0/1")
    assert await waited_s(quiet) == 0, "the home is new"
    first.expire()
    await HomeLock(MemoryStore(tree), 0, next_quiet).open("broker 1/2")
    assert await waited_s(next_quiet) == pytest.approx(LATE_S)


async def test_the_next_holder_does_not_wait_after_a_home_was_given_back() -> None:
    tree = MemoryTree()
    home, quiet = HomeLock(MemoryStore(tree), 0), QuietPeriods()
    await home.open("broker 0/1")
    await home.close()
    await HomeLock(MemoryStore(tree), 0, quiet).open("broker 1/2")
    assert await waited_s(quiet) == 0


async def test_the_next_holder_waits_if_a_call_had_no_answer_when_the_home_was_given_back() -> None:
    tree = MemoryTree()
    quiet, next_quiet = QuietPeriods(), QuietPeriods()
    home = HomeLock(MemoryStore(tree), 0, quiet)
    await home.open("broker 0/1")
    with pytest.raises(ConnectError):
        async with quiet.call(TopicName.parse("orders")):
            raise ConnectError("the connection was lost")
    await home.close()
    await HomeLock(MemoryStore(tree), 0, next_quiet).open("broker 1/2")
    assert await waited_s(next_quiet) == pytest.approx(LATE_S)
