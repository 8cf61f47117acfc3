"""Checkpoint groups that share segments by buckets: every message counts once, by committed checkpoints."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

from anabranch import AsyncCheckpointConsumer, AsyncClient, Checkpoint, Message
from anabranch.client.consume.segments.group_member import HANDOVER_S, GroupMember
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import AlreadyClosedError, ConsumerBusyError, InvalidConfigurationError
from simulation.harness.client_insides import sources_of
from tests.harness.cluster import TOPIC, Brokers

EARLIEST = Checkpoint.earliest()


class Effects:
    """The effects of a group: those of committed checkpoints count, others are dropped with their member."""

    def __init__(self) -> None:
        self.effects: dict[str, list[int]] = defaultdict(list)
        self.checkpoint = EARLIEST

    def check(self, keys: int, per_key: int) -> None:
        assert sorted(self.effects) == sorted(f"key-{n}" for n in range(keys))
        for key, numbers in self.effects.items():
            assert numbers == list(range(per_key)), f"{key}: {numbers[:40]}"


class CommittingMember:
    """A member with its uncommitted effects."""

    def __init__(self, ledger: Effects, client: AsyncClient, name: str) -> None:
        self._ledger = ledger
        self._client = client
        self.name = name
        self.pending: list[Message[bytes]] = []
        self.consumer: AsyncCheckpointConsumer[bytes] = None  # type: ignore[assignment]

    async def open(self) -> CommittingMember:
        start = self._ledger.checkpoint
        self.consumer = await self._client.create_checkpoint_consumer(
            TOPIC, start=start, group="g", name=self.name, receiver_queue_size=7
        )
        return self

    async def work(self, most: int, timeout: float = 0.3) -> int:
        found = await self.consumer.receive_many(most, timeout=timeout)
        self.pending += found
        return len(found)

    async def commit(self) -> bool:
        pending, self.pending = self.pending, []
        checkpoint = Checkpoint.from_bytes(self.consumer.checkpoint().to_bytes())
        try:
            await self.consumer.commit(checkpoint)
        except ConsumerBusyError:
            # Its effects are dropped, so it begins again at the positions of the group.
            await self.restart()
            return False
        for message in pending:
            self._ledger.effects[message.key or ""].append(int(message.data))
        self._ledger.checkpoint = Checkpoint.merge([self._ledger.checkpoint, checkpoint])
        return True

    async def restart(self) -> None:
        self.pending = []
        await self.consumer.close()
        await self.open()


async def finish(workers: list[CommittingMember]) -> None:
    idle = 0
    while idle < 8 * len(workers):
        for worker in workers:
            got = await worker.work(50)
            idle = 0 if got else idle + 1
            await worker.commit()


def buckets_read(workers: list[CommittingMember]) -> list[list[int]]:
    return [sorted(sources_of(worker.consumer)) for worker in workers]


async def test_members_share_a_segment_by_buckets_after_the_first_commit(brokers: Brokers) -> None:
    await brokers.publish(40, 5)
    ledger = Effects()
    async with brokers.client() as client:
        workers = [await CommittingMember(ledger, client, name).open() for name in ("a", "b", "c")]
        await workers[0].commit()
        await asyncio.sleep(1)
        assert buckets_read(workers) == [[0], [0], [0]]
        await finish(workers)
        ledger.check(40, 5)
        await brokers.publish(40, 2, first=5)
        for worker in workers:
            assert await worker.work(100) > 0, "each member reads some buckets"
        await finish(workers)
        ledger.check(40, 7)


async def test_only_a_checkpoint_can_be_committed(brokers: Brokers) -> None:
    async with brokers.client() as client:
        member = await client.create_checkpoint_consumer(TOPIC, group="g", start=Checkpoint.earliest())
        kept: Any = member.checkpoint().to_bytes()
        with pytest.raises(InvalidConfigurationError, match="commit takes a Checkpoint, not b"):
            await member.commit(kept)


async def test_a_bucket_moves_when_its_reader_has_committed(brokers: Brokers) -> None:
    await brokers.publish(30, 20)
    ledger = Effects()
    async with brokers.client() as client, brokers.client() as other:
        first = await CommittingMember(ledger, client, "a").open()
        for _ in range(5):
            await first.work(30)
        assert await first.commit()
        await first.work(100)
        second = await CommittingMember(ledger, other, "b").open()
        await asyncio.sleep(5)
        assert buckets_read([second]) == [[]], "the first member has messages that it did not commit"
        assert await first.commit()
        await asyncio.sleep(1)
        assert buckets_read([first, second]) == [[0], [0]]
        await finish([first, second])
        ledger.check(30, 20)


async def test_a_bucket_of_a_member_that_does_not_commit_moves_after_a_while(brokers: Brokers) -> None:
    await brokers.publish(30, 20)
    ledger = Effects()
    async with brokers.client() as client, brokers.client() as other:
        first = await CommittingMember(ledger, client, "a").open()
        await first.work(30)
        assert await first.commit()
        committed = first.consumer.checkpoint()
        await first.work(100)  # These effects are dropped.
        second = await CommittingMember(ledger, other, "b").open()
        await asyncio.sleep(HANDOVER_S + 5)
        assert buckets_read([first, second]) == [[0], [0]]
        kept = first.consumer.checkpoint()
        assert kept.positions == committed.positions, "other clients see the lowest position"
        assert len(kept.parts[0].parts) == 2, "the lost buckets are at the last commit, the others further"
        assert not await first.commit(), "half of the buckets moved"
        await finish([first, second])
        ledger.check(30, 20)


async def test_buckets_of_a_member_that_leaves_go_on_at_its_last_commit(brokers: Brokers) -> None:
    await brokers.publish(30, 20)
    ledger = Effects()
    async with brokers.client() as client, brokers.client() as other:
        workers = [
            await CommittingMember(ledger, of, name).open() for of, name in ((client, "a"), (other, "b"))
        ]
        await workers[0].commit()
        await asyncio.sleep(1)
        for worker in workers:
            await worker.work(60)
            await worker.commit()
            await worker.work(60)
        await workers[1].consumer.close()
        await finish(workers[:1])
        ledger.check(30, 20)


async def test_children_open_when_the_last_message_of_a_parent_is_committed(brokers: Brokers) -> None:
    """The application commits only after messages, and segments without messages wait for no commit."""
    await brokers.publish(10, 2)
    controller = await brokers.controller()
    ledger = Effects()
    async with brokers.client() as client:
        worker = await CommittingMember(ledger, client, "a").open()
        for id_ in range(4):
            await controller.rebucket(id_, (0x4000 + id_,))
        await brokers.publish(10, 2, first=2)
        while await worker.work(100, timeout=5):
            assert await worker.commit()
        ledger.check(10, 4)


async def test_a_member_that_starts_at_the_end_goes_on_where_the_group_is(brokers: Brokers) -> None:
    await brokers.publish(30, 1)
    async with brokers.client() as client, brokers.client() as other:
        first = await client.create_checkpoint_consumer(TOPIC, group="g", name="a")
        await first.commit()
        await brokers.publish(30, 2, first=1)
        await (await brokers.controller()).split(0)
        second = await other.create_checkpoint_consumer(TOPIC, group="g", name="b")
        await asyncio.sleep(1)
        found: list[bytes] = []
        for _ in range(10):
            for member in (first, second):
                found += [message.data for message in await member.receive_many(100, timeout=0.2)]
                await member.commit()
        assert sorted(found) == [b"1"] * 30 + [b"2"] * 30


async def test_a_bucket_checkpoint_is_restored_without_a_group(brokers: Brokers) -> None:
    await brokers.publish(30, 20)
    ledger = Effects()
    async with brokers.client() as client:
        workers = [await CommittingMember(ledger, client, name).open() for name in ("a", "b")]
        await workers[0].commit()
        await asyncio.sleep(1)
        await workers[0].work(7)
        await workers[1].work(90)
        for worker in workers:
            await worker.commit()
        assert 0 in ledger.checkpoint.parts
        for worker in workers:
            await worker.consumer.close()
        alone = await client.create_checkpoint_consumer(TOPIC, start=ledger.checkpoint)
        while messages := await alone.receive_many(100, timeout=1):
            for message in messages:
                ledger.effects[message.key or ""].append(int(message.data))
        ledger.check(30, 20)


async def test_a_member_that_closes_during_a_report_gives_its_name_back(brokers: Brokers) -> None:
    async with brokers.client() as client:
        for turn in range(20):
            member = await client.create_checkpoint_consumer(TOPIC, start=EARLIEST, group="g", name="a")
            await member.commit()
            committing = asyncio.ensure_future(member.commit())
            await asyncio.sleep(0.0002 * turn)
            await member.close()
            with suppress(AlreadyClosedError):
                await committing
            await asyncio.sleep(0.1)


async def test_a_member_that_was_dropped_makes_the_first_commit_of_its_group(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader does not store positions for an assignment that it took back, and the group has none yet."""
    monkeypatch.setattr(GroupMember, "report_starts", lambda member: None)
    await brokers.publish(30, 1)
    async with brokers.client() as client:
        member = await client.create_checkpoint_consumer(TOPIC, start=EARLIEST, group="g")
        assert await member.receive_many(10, timeout=5)
        brokers.hold_links()
        await asyncio.sleep(120)
        committing = asyncio.ensure_future(member.commit())
        await asyncio.sleep(0.1)
        brokers.open_links()
        await committing


async def test_a_consumer_without_a_group_cannot_commit(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.create_checkpoint_consumer(TOPIC)
        with pytest.raises(InvalidConfigurationError):
            await consumer.commit()


class GroupHistory:
    """Random steps of a group and of its topic."""

    def __init__(self, brokers: Brokers, controller: TopicController) -> None:
        self._brokers = brokers
        self._controller = controller
        self._rng = brokers.rng
        self.ledger = Effects()
        self.sent = 3
        self.clients = [brokers.client() for _ in range(4)]
        self.workers: list[CommittingMember] = []

    async def step(self) -> None:
        await self._rng.choice((self.join, self.leave, self.publish, self.change_layout, self.rebucket))()
        for _ in range(2):
            for worker in self.workers:
                await worker.work(self._rng.randrange(1, 40), timeout=0.1)
                if self._rng.random() < 0.4:
                    await worker.commit()

    async def join(self) -> None:
        free = [at for at in range(4) if f"m{at}" not in {worker.name for worker in self.workers}]
        if free:
            self.workers.append(
                await CommittingMember(self.ledger, self.clients[free[0]], f"m{free[0]}").open()
            )
            await self.workers[-1].commit()

    async def leave(self) -> None:
        if self.workers:
            worker = self.workers.pop(self._rng.randrange(len(self.workers)))
            if self._rng.random() < 0.5:
                await worker.commit()
            await worker.consumer.close()

    async def publish(self) -> None:
        await self._brokers.publish(24, 3, first=self.sent)
        self.sent += 3

    async def change_layout(self) -> None:
        await self._brokers.change_layout(self._rng)

    async def rebucket(self) -> None:
        splits = sorted(self._rng.sample(range(2, 65536), self._rng.randrange(1, 5)))
        await self._controller.rebucket(self._rng.choice(self._controller.layout.active).id, splits)


@pytest.mark.parametrize("seed", range(8))
async def test_every_message_counts_once_through_any_history(brokers: Brokers, seed: int) -> None:
    """Members join, leave and commit, segments split, merge and get other buckets."""
    await brokers.publish(24, 3)
    history = GroupHistory(brokers, await brokers.controller())
    for _ in range(15):
        await history.step()
    await history.join()
    await finish(history.workers)
    history.ledger.check(24, history.sent)
    for client in history.clients:
        await client.close()
