"""Spilled lanes on the wire: entries of a stuck key come in order, and are acknowledged by their old ids."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from anabranch.broker.browsing.logs import Logs
from anabranch.broker.catalog.trimming import ROUND_S
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.storage import SegmentStorage
from anabranch.model.hashing import sticky_hash
from anabranch.model.ids import Position
from anabranch.model.names import Place, TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.disk import DictDisk
from tests.harness.cluster import Brokers
from tests.harness.hot_keys import half
from tests.harness.storage import make
from tests.harness.wire import TOPIC, WireClient, batch, settle, value_of

KEY_SHARED = pb.CommandSubscribe.Key_Shared
KEYS = [f"k{n}" for n in range(10)]
LOW = [key for key in KEYS if sticky_hash(key.encode()) < 32768]
HIGH = [key for key in KEYS if key not in LOW]
ROUNDS = 12

pytestmark = pytest.mark.brokers(segment_retention_s=0, lane_retained_bytes=100, log_idle_s=30.0)


@pytest.fixture(params=["memory", "files"])
def storage(request: pytest.FixtureRequest) -> Callable[[], SegmentStorage]:
    if request.param == "memory":
        memory = MemoryStorage(ledger_entries_max=2)
        return lambda: memory
    disk = DictDisk()

    def files() -> SegmentStorage:
        disk.locked = False
        return make(disk, ledger_bytes_max=200, cache_bytes=0, behind_bytes=1)

    return files


class HotTopic:
    """A topic whose low keys are stuck; the others are acknowledged."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.got: dict[str, list[int]] = defaultdict(list)

    async def fill(self) -> None:
        self.client = await self._brokers.connect()
        await self.client.producer()
        self.stuck = await self.subscribe(1, upper=False, permits=0)
        self.healthy = await self.subscribe(2, upper=True, permits=1000)
        sequence = 0
        for number in range(ROUNDS):
            for key in KEYS:
                self.client.publish(f"{key}:{number}".encode(), sequence, key=key)
                sequence += 1
        await settle()
        healthy = self.healthy.has(Delivery)
        assert len(healthy) == ROUNDS * len(HIGH)
        self.healthy.acknowledge(*healthy, consumer_id=2)
        await settle()

    async def subscribe(self, number: int, *, upper: bool, permits: int) -> WireClient:
        client = await self._brokers.connect()
        meta = half(upper)
        await client.subscribe(kind=KEY_SHARED, consumer_id=number, permits=permits, keySharedMeta=meta)
        return client

    async def spill(self) -> None:
        """Let lanes be spilled and logs be trimmed."""
        await asyncio.sleep(2 * ROUND_S + 5)

    @property
    def served(self) -> ServedLog:
        return self._brokers[0].logs.require(TopicName.parse(TOPIC))

    @property
    def sides(self) -> Sequence[str]:
        return self._brokers[0].stores.side_names()

    def take(self, client: WireClient, number: int = 1) -> list[Delivery]:
        got = client.has(Delivery)
        client.inbox.clear()
        for delivery in got:
            key, at = value_of(delivery).decode().split(":")
            self.got[key].append(int(at))
        client.acknowledge(*got, consumer_id=number)
        return got


@pytest.fixture
async def topic(brokers: Brokers) -> HotTopic:
    topic = HotTopic(brokers)
    await topic.fill()
    await topic.spill()
    assert len(topic.sides) == 1
    assert topic.served.log.extent.first_ordinal > 60, "the log is trimmed although a key is stuck"
    return topic


async def test_spilled_entries_come_in_order_and_their_acknowledgements_count(topic: HotTopic) -> None:
    topic.stuck.flow(1000)
    await settle()
    topic.take(topic.stuck)
    assert topic.got == {key: list(range(ROUNDS)) for key in LOW}
    await topic.spill()
    assert topic.served.subscriptions["sub"].backlog == 0
    assert topic.sides == [], "a drained side log is deleted"


async def test_spilled_entries_survive_a_restart_in_order(topic: HotTopic, brokers: Brokers) -> None:
    topic.stuck.flow(7)
    await settle()
    topic.take(topic.stuck)
    await settle()
    await brokers.restart()
    assert topic.served.subscriptions["sub"].backlog == ROUNDS * len(LOW) - 7
    again = await topic.subscribe(1, upper=False, permits=1000)
    await settle()
    topic.take(again)
    assert topic.got == {key: list(range(ROUNDS)) for key in LOW}


async def test_an_exclusive_consumer_gets_spilled_entries_too(topic: HotTopic) -> None:
    topic.stuck.close()
    topic.healthy.close()
    await settle()
    await topic.client.subscribe(consumer_id=5)
    await settle()
    topic.take(topic.client, 5)
    assert topic.got == {key: list(range(ROUNDS)) for key in LOW}
    await settle()
    assert topic.served.subscriptions["sub"].backlog == 0


async def test_the_backlog_and_the_size_count_spilled_entries_loaded_or_not(
    topic: HotTopic, brokers: Brokers
) -> None:
    backlog = ROUNDS * len(LOW)
    assert topic.served.subscriptions["sub"].backlog == backlog
    assert topic.served.spilled_bytes > 0
    for client in (topic.stuck, topic.healthy, topic.client):
        client.close()
    name = TopicName.parse(TOPIC)
    await asyncio.sleep(100)
    assert brokers[0].logs.loaded(name) is None
    assert len(topic.sides) == 1
    assert topic.served.subscriptions["sub"].backlog == backlog


async def test_a_seek_drops_the_side_log(topic: HotTopic) -> None:
    subscription = topic.served.subscriptions["sub"]
    end = topic.served.log.extent.next_ordinal
    await subscription.seek(end - 1)
    await settle()
    assert topic.sides == []
    assert subscription.backlog == 1


@pytest.mark.parametrize("deleted", ["subscription", "log"])
async def test_a_deletion_leaves_no_side_log(topic: HotTopic, brokers: Brokers, deleted: str) -> None:
    if deleted == "subscription":
        await topic.served.unsubscribe("sub")
    else:
        await brokers[0].logs.drop(TopicName.parse(TOPIC))
    assert topic.sides == []


async def test_a_skip_takes_the_oldest_spilled_entries_and_keeps_the_others(
    topic: HotTopic, brokers: Brokers
) -> None:
    assert await Logs(brokers[0]).skip(Place(TopicName.parse(TOPIC), 0), "sub", 3) == 0
    await settle()
    topic.stuck.flow(1000)
    await settle()
    assert len(topic.take(topic.stuck)) == ROUNDS * len(LOW) - 3
    assert all(numbers[-1] == ROUNDS - 1 for numbers in topic.got.values())


async def test_an_expiry_takes_old_spilled_entries_and_keeps_the_others(
    topic: HotTopic, brokers: Brokers
) -> None:
    logs, place = Logs(brokers[0]), Place(TopicName.parse(TOPIC), 0)
    subscription = topic.served.subscriptions["sub"]
    await logs.expire(place, "sub", 5)
    assert subscription.backlog == ROUNDS * len(LOW), "no entry is that old"
    await logs.expire(place, "sub", brokers.clock.wall_ms())
    assert subscription.backlog == 0


async def test_side_logs_are_in_no_list_of_topics(topic: HotTopic, brokers: Brokers) -> None:
    assert [str(name) for name in await brokers[0].classic.list("public/default")] == [TOPIC]
    assert list(brokers[0].stores.names()) == [TOPIC]


async def test_a_sealed_log_is_not_drained_before_its_spilled_entries(topic: HotTopic) -> None:
    await topic.served.seal()
    subscription = topic.served.subscriptions["sub"]
    assert not subscription.done
    topic.stuck.flow(1000)
    await settle()
    topic.take(topic.stuck)
    await settle()
    assert subscription.done


async def test_single_messages_of_a_spilled_batch_are_acknowledged(brokers: Brokers) -> None:
    topic = HotTopic(brokers)
    await topic.fill()
    entry = batch([b"%s:%d" % (LOW[0].encode(), ROUNDS + n) for n in range(4)], key=LOW[0])
    topic.client.publish(b"", 1000, entry=entry, messages=4)
    for number in range(20):
        topic.client.publish(f"{HIGH[0]}:{number}".encode(), 2000 + number, key=HIGH[0])
    await settle()
    topic.healthy.acknowledge(*topic.healthy.has(Delivery), consumer_id=2)
    await topic.spill()
    topic.stuck.flow(1000)
    await settle()
    (whole,) = [one for one in topic.stuck.has(Delivery) if decode_columns(one.data, 2**20).values[1:]]
    part = pb.MessageIdData(ledgerId=whole.ledger, entryId=whole.entry, ack_set=[0b0101])
    topic.stuck.send(pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[part]))
    await settle()
    subscription = topic.served.subscriptions["sub"]
    ordinal = subscription.backing.log.extent.ordinal_of(part_position(part))
    assert subscription.cursor.acks.remaining(ordinal) == 0b0101
    await brokers.restart()
    assert topic.served.subscriptions["sub"].cursor.acks.remaining(ordinal) == 0b0101


def part_position(part: pb.MessageIdData) -> Position:
    return Position(part.ledgerId, part.entryId)
