"""The controller's port over logs of this process."""

from __future__ import annotations

import inspect

import pytest

from anabranch.controller.decide.admission import Roster
from anabranch.controller.ports.segments import Aim, Drained, Segments
from anabranch.errors import StaleTermError, TopicNotFoundError
from anabranch.ledger.memory import MemoryStorage
from anabranch.model.inheritance import Piece
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import FULL
from tests.harness.cluster import Brokers
from tests.harness.wire import settle

TOPIC = TopicName.parse("topic://public/default/orders")
SEGMENT = TopicName.parse("segment://public/default/orders/0000-ffff-7")
PLACE = Place(SEGMENT, 0)
BY_TERM: dict[str, tuple[object, ...]] = {
    "create": ({},),
    "seal": (),
    "inherit": ((Piece(FULL, {"p": 9}),),),
    "trim": (0,),
    "delete": (),
    "create_subscription": ("b", "latest"),
    "delete_subscription": ("a",),
    "seek": ("a", 1_002),
    "seek_to": ("a", Aim(0, 1)),
    "skip_all": ("a",),
    "restrict": ("a", Roster(1)),
}
"""The verbs that change a segment, and their arguments besides place and term."""


async def append(brokers: Brokers, count: int, messages: int = 1) -> None:
    log = brokers[0].logs.require(SEGMENT).log
    for number in range(count):
        log.append(b"x" * 100, messages, 1_000 + number, lambda appended, error: None)
    await log.flush()


async def test_every_verb_may_be_repeated(brokers: Brokers) -> None:
    segments = brokers[0].segments
    for _ in range(2):
        await segments.create(PLACE, {"a": "earliest"}, 1)
    await append(brokers, 3)
    for _ in range(2):
        await segments.create_subscription(PLACE, "late", "latest", 1)
        await segments.create_subscription(PLACE, "early", "earliest", 1)
    assert [await segments.backlog(PLACE, sub) for sub in ("a", "late", "early", "none")] == [
        3,
        0,
        3,
        None,
    ]
    for _ in range(2):
        await segments.seal(PLACE, 1)
        await segments.delete_subscription(PLACE, "early", 1)
    assert await segments.backlog(PLACE, "early") is None
    for _ in range(2):
        await segments.delete(PLACE, 1)
    assert brokers[0].logs.get(SEGMENT) is None
    assert await segments.backlog(PLACE, "a") is None


async def test_an_older_term_changes_nothing(brokers: Brokers) -> None:
    segments = brokers[0].segments
    await segments.create(PLACE, {"a": "earliest"}, 5)
    await append(brokers, 3)
    for verb, arguments in BY_TERM.items():
        with pytest.raises(StaleTermError):
            await getattr(segments, verb)(PLACE, *arguments, 4)
    segment = brokers[0].logs.require(SEGMENT)
    assert not segment.log.sealed
    assert segment.log.sequences.inherited == ()
    assert segment.log.extent.first_ordinal == 0
    assert list(segment.subscriptions) == ["a"]
    assert segment.subscriptions["a"].backlog == 3


def test_every_verb_that_changes_something_carries_a_term() -> None:
    verbs = {
        name: inspect.signature(verb).parameters for name, verb in vars(Segments).items() if name[0] != "_"
    }
    assert {name for name, parameters in verbs.items() if "term" in parameters} == BY_TERM.keys()
    assert verbs.keys() - BY_TERM.keys() == {"backlog", "consumers", "drained", "load", "on_drained"}


async def test_sealing_what_is_not_there_is_an_error(brokers: Brokers) -> None:
    with pytest.raises(TopicNotFoundError):
        await brokers[0].segments.seal(PLACE, 1)


async def test_seek_and_skip_move_a_subscription_and_pass_over_one_that_is_not_there(
    brokers: Brokers,
) -> None:
    segments = brokers[0].segments
    await segments.create(PLACE, {"a": "earliest"}, 1)
    await append(brokers, 10)
    await segments.seek(PLACE, "a", 1_006, 1)
    assert await segments.backlog(PLACE, "a") == 4
    await segments.seek(PLACE, "a", 0, 1)
    assert await segments.backlog(PLACE, "a") == 10
    await segments.skip_all(PLACE, "a", 1)
    assert await segments.backlog(PLACE, "a") == 0
    await segments.seek(PLACE, "unknown", 0, 1)
    await segments.skip_all(PLACE, "unknown", 1)


@pytest.mark.brokers(storage=lambda: MemoryStorage(ledger_entries_max=2))
async def test_a_trim_drops_what_is_acknowledged_as_long_as_enough_stays(brokers: Brokers) -> None:
    segments = brokers[0].segments
    await segments.create(PLACE, {"a": "earliest"}, 1)
    await append(brokers, 10)
    log = brokers[0].logs.require(SEGMENT).log
    await segments.trim(PLACE, 0, 1)
    assert log.extent.first_ordinal == 0, "no entry is acknowledged"
    await segments.seek(PLACE, "a", 1_005, 1)
    await segments.trim(PLACE, 800, 1)
    assert (log.extent.first_ordinal, log.extent.size_bytes) == (2, 800)
    await segments.trim(PLACE, 0, 1)
    assert (log.extent.first_ordinal, log.extent.size_bytes) == (4, 600)
    await segments.skip_all(PLACE, "a", 1)
    for keep_bytes, first in ((600, 4), (301, 6), (0, 8)):
        await segments.trim(PLACE, keep_bytes, 1)
        assert log.extent.first_ordinal == first


async def test_a_backlog_is_counted_in_messages_also_when_they_are_acknowledged_out_of_order(
    brokers: Brokers,
) -> None:
    segments = brokers[0].segments
    await segments.create(PLACE, {"a": "earliest", "b": "earliest"}, 1)
    await append(brokers, 10, messages=7)
    cursor = brokers[0].logs.require(SEGMENT).subscriptions["a"].cursor
    cursor.acknowledge([0, 4, 5])
    assert [await segments.backlog(PLACE, sub) for sub in ("a", "b")] == [49, 70]
    assert (await segments.load(PLACE)).backlog_messages == 70


async def test_a_sealed_segment_that_is_skipped_is_drained_and_after_a_seek_again(brokers: Brokers) -> None:
    segments = brokers[0].segments
    drained: list[Drained] = []
    undo = segments.on_drained(TOPIC, drained.append)
    await segments.create(PLACE, {"a": "earliest"}, 1)
    await append(brokers, 2)
    await segments.seal(PLACE, 1)
    await settle()
    assert drained == []
    await segments.skip_all(PLACE, "a", 1)
    await settle()
    assert drained == [Drained(SEGMENT, "a")]
    await segments.seek(PLACE, "a", 0, 1)
    await segments.skip_all(PLACE, "a", 1)
    await settle()
    assert len(drained) == 2
    undo()
    undo()
    await segments.seek(PLACE, "a", 0, 1)
    await segments.skip_all(PLACE, "a", 1)
    await settle()
    assert len(drained) == 2


@pytest.mark.brokers(load_report_interval_s=10.0)
async def test_the_load_of_a_segment_has_rates_backlog_and_size(brokers: Brokers) -> None:
    client = await brokers.connect()
    name = "persistent://public/default/load"
    await client.producer(name)
    await client.subscribe(name)
    await client.publish_all([b"x"] * 100)
    await client.deliveries(100)
    load = await brokers[0].segments.load(Place(TopicName.parse(name), 0))
    assert load.msg_rate_in == pytest.approx(10.0, rel=0.01)
    assert load.msg_rate_out == pytest.approx(10.0, rel=0.01)
    assert load.bytes_rate_in > 100
    assert load.backlog_messages == 100
    assert load.size_bytes > 1000
    await settle()
    assert (await brokers[0].segments.load(PLACE)).msg_rate_in == 0.0
