"""Raw entries and tails, as bulk readers use them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from anabranch import Batching
from anabranch.client.consume import segment_reader
from anabranch.client.consume.segment_reader import RawEntry
from anabranch.errors import AlreadyClosedError, TopicNotFoundError
from anabranch.ledger.memory import MemoryLog
from anabranch.model.ranges import FULL
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.outer import head_without
from anabranch.testing.lies import HIDDEN, VISIBLE
from tests.harness.cluster import TOPIC, Brokers, read_all
from tests.harness.lies import store


async def publish(brokers: Brokers, count: int) -> str:
    """Publish numbers to a topic of one segment and one bucket; returns the segment's name."""
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=7))
        await producer.send_many([b"%d" % n for n in range(count)], keys=["k"] * count)
        layout = await client.layout(TOPIC)
        return layout.segment_topic(layout.layout.segment(0))


def values(entries: list[RawEntry]) -> dict[int, bytes]:
    """The values of entries by message index."""
    return {
        entry.first_index + index: value or b""
        for entry in entries
        for index, value in enumerate(decode_columns(entry.data, 2**20).values)
    }


async def test_entries_hold_the_messages_asked_for_under_their_indexes(brokers: Brokers) -> None:
    topic = await publish(brokers, 100)
    async with brokers.client() as client:
        for start, stop in ((0, 100), (0, 1), (13, 14), (50, 90), (99, 100)):
            reader = client.read_segment(topic, start, stop)
            found = values(await read_all(reader))
            wanted = {index: found[index] for index in range(start, stop)}
            assert wanted == {index: b"%d" % index for index in range(start, stop)}
            assert min(found) > start - 7
            assert max(found) < stop + 7


async def publish_keys(brokers: Brokers, count: int) -> str:
    """Publish keyed numbers to a segment of four buckets; returns the segment's name."""
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_messages=40))
        await producer.send_many([b"%d" % n for n in range(count)], keys=[f"k{n}" for n in range(count)])
        layout = await client.layout(TOPIC)
        return layout.segment_topic(layout.layout.segment(0))


async def test_readers_by_bucket_hashes_see_all_indexes_and_share_the_payloads(brokers: Brokers) -> None:
    topic = await publish_keys(brokers, 2000)
    async with brokers.client() as client:
        whole = await read_all(client.read_segment(topic, 0, 2000))
        found: dict[int, bytes] = {}
        moved = 0
        for part in FULL.parts(4):
            entries = await read_all(client.read_segment(topic, 0, 2000, bucket_hashes=part))
            assert [e[:5] for e in entries] == [e[:5] for e in whole]
            mine = [e for e in entries if head_without(e.data, part) is None]
            assert all(e.data in {one.data for one in whole} for e in mine)
            found.update(values(mine))
            moved += sum(len(e.data) for e in entries if e in mine)
        assert found == values(whole)
        assert moved == sum(len(e.data) for e in whole), "each payload went to one reader"


async def test_a_reader_by_bucket_hashes_knows_where_an_entry_without_payload_begins(
    brokers: Brokers,
) -> None:
    topic = await publish_keys(brokers, 400)
    async with brokers.client() as client:
        whole = await read_all(client.read_segment(topic, 0, 400))
        for part in FULL.parts(4):
            for entry in whole:
                last = entry.first_index + entry.message_count
                first, *_ = await client.read_segment(topic, last - 1, last, bucket_hashes=part).read()
                assert first[:5] == entry[:5]


async def test_an_empty_span_reads_nothing(brokers: Brokers) -> None:
    topic = await publish(brokers, 10)
    async with brokers.client() as client:
        assert await client.read_segment(topic, 5, 5).read() == []


async def test_a_span_whose_last_messages_were_lost_ends_before_them(brokers: Brokers) -> None:
    topic = await publish(brokers, 10)
    log = next(found for storage in brokers.storages.values() if (found := storage.get(topic)) is not None)
    assert isinstance(log, MemoryLog)
    log.extent.next_index += 1000
    log.reopen()
    await publish(brokers, 1)
    async with brokers.client() as client:
        assert sorted(values(await read_all(client.read_segment(topic, 5, 20)))) == [*range(10)]
        assert sorted(values(await read_all(client.read_segment(topic, 12, 1011)))) == [1010]


async def test_reading_goes_on_after_a_lost_connection(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "PERMITS", 50)
    topic = await publish(brokers, 2000)
    async with brokers.client() as client:
        reader = client.read_segment(topic, 3, 1990)
        entries: list[RawEntry] = []
        while some := await reader.read():
            entries += some
            if brokers.rng.random() < 0.3:
                brokers.reset_links()
        found = values(entries)
        assert sum(entry.message_count for entry in entries) == len(found), "no entry was read twice"
        assert all(found[index] == b"%d" % index for index in range(3, 1990))


async def test_tails_say_what_a_segment_holds_and_whether_it_will_grow(brokers: Brokers) -> None:
    topic = await publish(brokers, 10)
    async with brokers.client() as client:
        tails = client.tails()
        assert (await tails.tail(topic))[:3] == (0, 10, False)
        await publish(brokers, 5)
        brokers.reset_links()
        assert (await tails.tail(topic))[:3] == (0, 15, False)
        layout = await (await brokers.controller()).split(0)
        name = (await client.layout(TOPIC)).name
        children = [str(name.segment_name(segment.range, segment.id)) for segment in layout.active]
        found = {name: tail[:3] for name, tail in (await tails.tails([topic, *children])).items()}
        assert found == {topic: (0, 15, True), children[0]: (0, 0, False), children[1]: (0, 0, False)}
        tails.forget(topic)
        await tails.close()
        with pytest.raises(AlreadyClosedError):
            await tails.tail(topic)


async def test_a_segment_that_does_not_exist_is_not_found(brokers: Brokers) -> None:
    await publish(brokers, 1)
    async with brokers.client() as client:
        missing = "segment://public/default/orders/0000-7fff-77"
        with pytest.raises(TopicNotFoundError):
            await client.read_segment(missing, 0, 1).read()
        with pytest.raises(TopicNotFoundError):
            await client.tails().tail(missing)
        await asyncio.sleep(0)


async def test_indexes_of_the_broker_count_whatever_entries_claim(brokers: Brokers) -> None:
    topic = await publish(brokers, 3)
    expected = [(0, 3)]
    for count in (1, 500, 3):
        for lie in (*VISIBLE, *HIDDEN):
            await store(brokers, lie, count=count)
            expected.append((sum(expected[-1]), count))
    async with brokers.client() as client:
        end = sum(expected[-1])
        found = await read_all(client.read_segment(topic, 0, end))
        assert [(entry.first_index, entry.message_count) for entry in found] == expected
        middle = await read_all(client.read_segment(topic, 10, 2000))
        assert middle[-1].first_index + middle[-1].message_count >= 2000
        assert all(
            one.first_index + one.message_count == other.first_index for one, other in pairwise(middle)
        )
