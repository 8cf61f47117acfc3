"""The layout watch: layouts that arrive before the first one is taken."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.aio import TaskRegistry
from anabranch.client.net.topics.layout_watch import LayoutWatch, TopicLayout, layout_from_wire
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.fakes import FakePool

NAME = TopicName.parse("topic://public/default/orders")


class EagerConnection:
    """A connection whose broker answers a look-up with several layouts at once."""

    def __init__(self, epochs: tuple[int, ...], *, able: bool = True, partitions: int = 0) -> None:
        self.watches: dict[int, LayoutWatch] = {}
        self.is_ours = True
        features = SimpleNamespace(supports_scalable_topics=able)
        self.machine = SimpleNamespace(server_features=features, server_version="Anabranch")
        self.sent: list[Any] = []
        self._epochs = epochs
        self._partitions = partitions

    async def request(self, message: Any, answer: Any, timeout_s: float) -> Any:
        self.sent.append(message)
        return answer(request_id=message.request_id, partitions=self._partitions)

    def send(self, message: Any) -> None:
        self.sent.append(message)
        if isinstance(message, pb.CommandScalableTopicLookup):
            for epoch in self._epochs:
                self.tell(epoch)

    def tell(self, epoch: int) -> None:
        segment = pb.SegmentInfoProto(segment_id=epoch, hash_start=0, hash_end=0xFFFF, state=pb.ACTIVE)
        dag = pb.ScalableTopicDAG(epoch=epoch, segments=[segment])
        for session, watch in list(self.watches.items()):
            watch.updated(pb.CommandScalableTopicUpdate(session_id=session, dag=dag))


class Pool(FakePool):
    def __init__(self, *connections: EagerConnection) -> None:
        super().__init__(lambda _: None)
        self._unused = list(connections)

    async def any_connection(self) -> Any:
        return self._unused.pop(0)


async def test_a_session_begins_with_the_newest_layout_and_never_steps_back() -> None:
    changes: list[int] = []

    def changed(layout: TopicLayout) -> None:
        changes.append(layout.layout.epoch)

    tasks = TaskRegistry()
    first, second = EagerConnection((1, 2)), EagerConnection((4, 5))
    pool: Any = Pool(first, second)
    watch = LayoutWatch(pool, NAME, changed)
    assert (await watch.open(tasks, 30.0)).layout.epoch == 2
    assert changes == [], "`open` returns the first layout instead"
    first.tell(3)
    assert changes == [3]
    watch.connection_lost()
    for _ in range(20):
        await asyncio.sleep(0)
    assert changes == [3, 5]
    await tasks.stop()


@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_broker_without_scalable_topics_is_asked_for_partitions(partitions: int) -> None:
    tasks, broker = TaskRegistry(), EagerConnection((1,), able=False, partitions=partitions)
    pool: Any = Pool(broker)
    found = await LayoutWatch(pool, NAME, lambda _: None, create=False).open(tasks, 30.0)
    (asked,) = broker.sent
    assert asked.topic == "persistent://public/default/orders"
    assert not asked.metadata_auto_creation_enabled
    names = [found.segment_topic(segment) for segment in found.layout.active]
    whole = "persistent://public/default/orders"
    assert names == ([f"{whole}-partition-{n}" for n in range(partitions)] or [whole])
    await tasks.stop()


def test_a_topic_of_pulsar_that_keeps_a_range_is_no_classic_topic() -> None:
    held = "persistent://public/default/orders.segment-0000-ffff-3"
    segment = pb.SegmentInfoProto(
        segment_id=3, hash_start=0, hash_end=0xFFFF, state=pb.ACTIVE, legacy_topic_name=held, keeps_range=True
    )
    update = pb.CommandScalableTopicUpdate(session_id=1)
    update.dag.CopyFrom(pb.ScalableTopicDAG(epoch=1, segments=[segment]))
    layout = layout_from_wire(update, NAME)
    (found,) = layout.layout.active
    assert not found.is_classic
    assert layout.segment_topic(found) == held
    assert layout.topics == {3: held}
