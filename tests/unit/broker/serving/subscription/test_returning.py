"""Entries that come back in several slices, while other events happen between two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.subscription.acknowledging import SLICE_IDS
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.ledger.memory import MemoryLog
from anabranch.ledger.storage import Entry
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, settle, value_of

COUNT = 4 * SLICE_IDS
"""Entries that are delivered first, and again; the one of the key "late" is the last of them."""

SHARED, KEY_SHARED = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call the first COUNT entries must be read from disk."""
    remembered, each = MemoryLog.read_cached, MemoryLog.read_each_cached

    def read_cached(
        self: MemoryLog, ordinal: int, max_entries: int, max_bytes: int
    ) -> Sequence[Entry] | None:
        return None if ordinal < COUNT else remembered(self, ordinal, max_entries, max_bytes)

    async def read(self: MemoryLog, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        return remembered(self, ordinal, max_entries, max_bytes)

    def read_each_cached(self: MemoryLog, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        return None if ordinals[0] < COUNT else each(self, ordinals, max_bytes)

    async def read_each(self: MemoryLog, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        return each(self, ordinals, max_bytes)

    def forget() -> None:
        for made in (read_cached, read, read_each_cached, read_each):
            monkeypatch.setattr(MemoryLog, made.__name__, made)

    return forget


async def _hold(brokers: Brokers, kind: int) -> tuple[WireClient, list[pb.MessageIdData]]:
    """Let a consumer receive COUNT entries, and store one more; return its client and the ids."""
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=kind, permits=COUNT)
    for number in range(COUNT - 1):
        client.publish(b"%d" % number, number, key=f"k{number % 50}")
    client.publish(b"late:0", COUNT - 1, key="late")
    client.publish(b"late:1", COUNT, key="late")
    await settle()
    got = client.has(Delivery)
    client.inbox.clear()
    assert len(got) == COUNT
    return client, [pb.MessageIdData(ledgerId=one.ledger, entryId=one.entry) for one in got]


def _served(brokers: Brokers) -> tuple[Subscription, ServedConsumer]:
    (log,) = brokers[0].logs.served
    subscription = log.subscriptions["sub"]
    return subscription, next(iter(subscription.consumers))


async def _redeliver(
    client: WireClient, ids: Sequence[pb.MessageIdData], between: Callable[[], bool], loop: SimLoop
) -> None:
    """Send a redelivery, and call `between` after each step until it returns True."""

    def watch(process: SimProcess | None, step: Callable[[], None]) -> None:
        step()
        if between():
            loop.on_step = None

    loop.on_step = watch
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids, consumer_epoch=1))
    await settle()
    assert loop.on_step is None


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_no_entry_overtakes_an_earlier_one_that_is_still_coming_back(
    kind: int, by_id: bool, brokers: Brokers, loop: SimLoop, cold: Callable[[], None]
) -> None:
    client, ids = await _hold(brokers, kind)
    subscription, consumer = _served(brokers)

    def between() -> bool:
        if len(consumer.outstanding) == COUNT:
            return False
        assert len(consumer.outstanding) >= COUNT - SLICE_IDS, "only the first slice is back"
        cold()
        subscription.flow(consumer, 2 * COUNT)
        return True

    await _redeliver(client, ids if by_id else (), between, loop)
    again = [(value_of(one), one.redelivery_count) for one in client.has(Delivery)]
    assert [one for one in again if one[0].startswith(b"late")] == [(b"late:0", 1), (b"late:1", 0)]
    assert len(again) == COUNT + 1


@pytest.mark.brokers(dispatch_max_entries=2 * SLICE_IDS)
async def test_a_batch_larger_than_a_slice_does_not_reach_past_entries_that_come_back(
    brokers: Brokers, loop: SimLoop
) -> None:
    client, _ = await _hold(brokers, KEY_SHARED)
    subscription, consumer = _served(brokers)

    def between() -> bool:
        back = len(consumer.outstanding) < COUNT
        if back:
            subscription.flow(consumer, 2 * COUNT)
            while subscription.reading.turn():
                pass
        return back

    await _redeliver(client, (), between, loop)
    late = [value_of(one) for one in client.has(Delivery) if value_of(one).startswith(b"late")]
    assert late == [b"late:0", b"late:1"]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_consumer_that_leaves_during_its_redelivery_leaves_nothing_behind(
    kind: int, brokers: Brokers, loop: SimLoop
) -> None:
    client, _ = await _hold(brokers, kind)
    subscription, consumer = _served(brokers)
    other = await brokers.connect()
    await other.subscribe(kind=kind, consumer_id=2, permits=0)
    other.flow(2 * COUNT, 2)

    def between() -> bool:
        back = len(consumer.outstanding) < COUNT
        if back:
            client.close()
        return back

    await _redeliver(client, (), between, loop)
    await settle()
    again = [(value_of(one), one.redelivery_count) for one in other.has(Delivery)]
    values = [value for value, _ in again]
    assert sorted(values) == sorted([b"%d" % n for n in range(COUNT - 1)] + [b"late:0", b"late:1"])
    assert dict(again)[b"late:0"] == 1
    assert subscription.reading.unacked == COUNT + 1
    assert kind == SHARED or values.index(b"late:0") < values.index(b"late:1")


async def test_an_ordered_redelivery_sends_nothing_later_in_the_new_epoch_before_it(
    brokers: Brokers, loop: SimLoop
) -> None:
    client, ids = await _hold(brokers, pb.CommandSubscribe.Exclusive)
    subscription, consumer = _served(brokers)

    def between() -> bool:
        if consumer.epoch is None:
            return False
        subscription.flow(consumer, 2 * COUNT)
        return True

    await _redeliver(client, ids, between, loop)
    again = [value_of(one) for one in client.has(Delivery)]
    assert again == [*(b"%d" % number for number in range(COUNT - 1)), b"late:0", b"late:1"]
