"""Messages that no broker could take: they are refused in the caller's call, and cost no other message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from anabranch import Batching
from anabranch.errors import InvalidConfigurationError
from tests.harness.cluster import TOPIC, Brokers

HALF = "\ud800"
"""Half of a surrogate pair, as `json.loads` makes of broken text."""

UNSENDABLE: list[tuple[dict[str, Any], str]] = [
    ({"key": HALF}, "a key must be text that has a form in UTF-8"),
    ({"key": HALF, "properties": {"a": "b"}}, "a key must be text that has a form in UTF-8"),
    ({"properties": {"a": HALF}}, "properties must be text that has a form in UTF-8"),
    ({"properties": {HALF: "a"}}, "properties must be text that has a form in UTF-8"),
    ({"event_time": datetime(1969, 12, 31, tzinfo=UTC)}, "event_time must not be before 1970"),
    ({"deliver_at": datetime(1969, 12, 31, tzinfo=UTC)}, "deliver_at must not be before 1970"),
    ({"deliver_after": 1e16}, "deliver_after must be a shorter time"),
    ({"sequence_id": -1}, "sequence_id must be 0 or more"),
    ({"sequence_id": 2**63}, "sequence_id must be 0 or more"),
    ({"sequence_id": "7"}, "sequence_id must be 0 or more"),
]


@pytest.mark.parametrize(("more", "reason"), UNSENDABLE, ids=map(str, range(len(UNSENDABLE))))
async def test_a_message_that_cannot_be_sent_is_refused_and_its_batch_is_stored(
    brokers: Brokers, more: dict[str, Any], reason: str
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=Batching(max_delay=0.2))
        before = await producer.enqueue(b"before")
        with pytest.raises(InvalidConfigurationError, match=reason):
            await producer.enqueue(b"refused", **more)
        after = await producer.enqueue(b"after")
        assert (await before).entry == (await after).entry, "both are in one batch"


async def test_a_list_with_a_key_that_cannot_be_sent_is_refused_as_a_whole(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC)
        lists: list[list[Any]] = [["a", HALF], [None, HALF], [b"a", HALF], ["ä", HALF]]
        for keys in lists:
            with pytest.raises(InvalidConfigurationError, match="a key must be text"):
                await producer.send_many([b"0", b"1"], keys=keys)
        await producer.send_many([b"2", b"3", b"4", b"5"], keys=["ä", None, b"\xff", "a"])
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        found = {(await consumer.receive(timeout=5)).data for _ in range(4)}
        assert found == {b"2", b"3", b"4", b"5"}, "the lists before have left nothing"
