"""Watchers get the newest layout only."""

from __future__ import annotations

import asyncio

from anabranch.controller.layout_watches import LayoutWatches
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

TOPIC = TopicName.parse("topic://public/default/orders")
OTHER = TopicName.parse("topic://public/default/other")


def layouts() -> list[Layout]:
    first = Layout.initial(1, now_ms=0)
    second = first.split(0, now_ms=1)
    return [first, second, second.merge([1, 2], now_ms=2)]


async def told(heard: list[Layout | None]) -> list[int | None]:
    await asyncio.sleep(0)
    return [None if layout is None else layout.epoch for layout in heard]


async def test_a_watcher_hears_of_the_current_layout_and_of_later_ones() -> None:
    watches = LayoutWatches()
    heard: list[Layout | None] = []
    first, second, third = layouts()
    undo = watches.add(TOPIC, heard.append, first)
    assert await told(heard) == [0]
    watches.offer(TOPIC, second)
    watches.offer(OTHER, third)
    assert await told(heard) == [0, 1]
    undo()
    undo()
    watches.offer(TOPIC, third)
    assert await told(heard) == [0, 1]
    assert not watches.watched(TOPIC)


async def test_overtaken_layouts_are_skipped_and_epochs_never_go_back() -> None:
    watches = LayoutWatches()
    heard: list[Layout | None] = []
    first, second, third = layouts()
    watches.add(TOPIC, heard.append, None)
    watches.offer(TOPIC, second)
    watches.offer(TOPIC, third)
    watches.offer(TOPIC, first)
    assert await told(heard) == [2]
    watches.offer(TOPIC, second)
    watches.offer(TOPIC, third)
    assert await told(heard) == [2]


async def test_a_deletion_is_delivered_once_and_a_recreated_topic_after_it() -> None:
    watches = LayoutWatches()
    heard: list[Layout | None] = []
    first, second, _ = layouts()
    watches.add(TOPIC, heard.append, first)
    await told(heard)
    watches.offer(TOPIC, None)
    assert await told(heard) == [0, None]
    watches.offer(TOPIC, None)
    watches.offer(TOPIC, second)
    assert await told(heard) == [0, None, 1]
    watches.offer(TOPIC, None)
    await told(heard)
    watches.offer(TOPIC, first)
    assert await told(heard) == [0, None, 1, None], "also after a deletion epochs only rise"


async def test_a_failing_watcher_harms_no_other() -> None:
    watches = LayoutWatches()
    heard: list[Layout | None] = []
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(_: Layout | None) -> None:
        raise RuntimeError("broken")

    first = layouts()[0]
    watches.add(TOPIC, fail, first)
    watches.add(TOPIC, heard.append, first)
    assert await told(heard) == [0]
    assert len(failures) == 1


async def test_a_topic_is_unwatched_when_its_last_watcher_left() -> None:
    watches = LayoutWatches()
    undos = [watches.add(TOPIC, lambda layout: None, None) for _ in range(3)]
    for undo in undos:
        assert watches.watched(TOPIC)
        undo()
    assert not watches.watched(TOPIC)
