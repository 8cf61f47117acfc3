"""Messages in columns through a real broker on a virtual clock: as safe as one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from anabranch.client.bulk.encoded_rows import EncodedPart
from anabranch.errors import AlreadyClosedError
from anabranch.model.hashing import bucket_hash, bucket_index, key_hash
from anabranch.model.layout import Layout
from anabranch.model.routing import Router
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.entries import checked_metadata, decode_columns
from tests.harness.cluster import TOPIC, Brokers, Orders, read_all, stored_messages


class ListRows:
    """Columns as plain lists; one part per bucket, in the order of highest sequence ids."""

    def __init__(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self._keys = keys
        self._values = values

    @property
    def row_count(self) -> int:
        return len(self._keys)

    def encode(self, layout: Layout, first_sequence_id: int, bytes_max: int) -> Sequence[EncodedPart]:
        router = Router(layout)
        buckets: dict[tuple[int, int], list[int]] = {}
        for row, key in enumerate(self._keys):
            segment = router.segment_for(key_hash(key))
            buckets.setdefault(
                (segment.id, bucket_index(segment.bucket_splits, bucket_hash(key_hash(key)))), []
            ).append(row)
        parts = []
        for (segment_id, _), rows in buckets.items():
            slots = [key_hash(self._keys[row]) & 0xFFFF for row in rows]
            batch = MessageBatch()
            for row in rows:
                batch.add(self._values[row], self._keys[row], first_sequence_id + row)
            entry = batch.build("producer", 1)
            _, payload_at = checked_metadata(entry)
            parts.append(
                EncodedPart(
                    segment_id,
                    entry[payload_at:],
                    len(rows),
                    first_sequence_id + rows[-1],
                    self._keys[rows[0]],
                    (min(slots), max(slots)),
                    self._keys[rows[-1]],
                )
            )
        return sorted(parts, key=lambda part: part.sequence_id)


@pytest.mark.parametrize("seed", range(8))
async def test_columns_and_single_messages_keep_their_order_through_kills_and_splits(
    brokers: Brokers, seed: int
) -> None:
    rng = brokers.rng
    client = brokers.client()
    producer = await client.create_bulk_producer(TOPIC)
    waiting = []
    number = 0
    async with brokers.trouble(changes=0.4, interrupted=0.3, pause_s_max=0.02):
        while number < 150:
            if rng.random() < 0.3:
                for key in range(15):
                    waiting.append(await producer.enqueue(b"%d" % number, key=f"key-{key}"))
                number += 1
            else:
                count = rng.randrange(1, 10)
                pairs = [
                    (f"key-{key}", b"%d" % n)
                    for n in range(number, min(number + count, 150))
                    for key in range(15)
                ]
                rows = ListRows([key for key, _ in pairs], [value for _, value in pairs])
                waiting.append(await producer.enqueue_encoded(rows))  # type: ignore[arg-type]
                number = min(number + count, 150)
            await asyncio.sleep(rng.uniform(0.0, 0.004))
    for outcome in waiting:
        await outcome
    await client.close()
    orders = Orders()
    async with brokers.client() as reader:
        orders.take(await stored_messages(reader))
    orders.check(15, 150)


async def test_columns_are_stored_as_entries_of_their_buckets(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_bulk_producer(TOPIC)
        keys = [f"key-{n}" for n in range(100)]
        await (await producer.enqueue_encoded(ListRows(keys, [b"%d" % n for n in range(100)])))
        assert producer.last_sequence_id == 99
        layout = await client.layout(TOPIC)
        (segment,) = layout.layout.active
        reader = client.read_segment(layout.segment_topic(segment), 0, 100)
        entries = await read_all(reader)
        assert len(entries) == segment.bucket_count
        assert sum(decode_columns(entry.data, 2**20).count for entry in entries) == 100


async def test_a_closed_producer_takes_no_columns(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_bulk_producer(TOPIC)
        await producer.close()
        with pytest.raises(AlreadyClosedError):
            await producer.enqueue_encoded(ListRows(["k"], [b"v"]))
