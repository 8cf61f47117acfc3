"""The layout watch by itself: what comes faster than it is looked at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.aio import TaskRegistry
from anabranch.client.net.layout_watch import LayoutWatch, TopicLayout
from anabranch.errors import UnsupportedFeatureError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.fakes import FakePool

NAME = TopicName.parse("topic://public/default/orders")


class Told:
    """A connection whose broker answers a look-up with several layouts in one breath."""

    def __init__(self, epochs: tuple[int, ...], *, able: bool = True) -> None:
        self.watches: dict[int, LayoutWatch] = {}
        self.is_ours = True
        self.machine = SimpleNamespace(server_features=SimpleNamespace(supports_scalable_topics=able))
        self.sent: list[Any] = []
        self._epochs = epochs

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
    def __init__(self, *connections: Told) -> None:
        super().__init__(lambda _: None)
        self._told = list(connections)

    async def any_connection(self) -> Any:
        return self._told.pop(0)


async def test_a_session_begins_with_the_newest_layout_and_never_steps_back() -> None:
    changes: list[int] = []

    def changed(layout: TopicLayout) -> None:
        changes.append(layout.layout.epoch)

    tasks = TaskRegistry()
    first, second = Told((1, 2)), Told((4, 5))
    pool: Any = Pool(first, second)
    watch = LayoutWatch(pool, NAME, changed)
    assert (await watch.open(tasks)).layout.epoch == 2
    assert changes == [], "whoever opens it is not ready before it has the first one"
    first.tell(3)
    assert changes == [3]
    watch.connection_lost()
    for _ in range(20):
        await asyncio.sleep(0)
    assert changes == [3, 5]
    await tasks.stop()


async def test_a_broker_that_knows_no_scalable_topics_is_not_asked_for_any() -> None:
    tasks, broker = TaskRegistry(), Told((1,), able=False)
    pool: Any = Pool(broker)
    with pytest.raises(UnsupportedFeatureError):
        await LayoutWatch(pool, NAME, lambda _: None).open(tasks)
    assert broker.sent == [], "it would hang up on a command that it does not know"
    await tasks.stop()
