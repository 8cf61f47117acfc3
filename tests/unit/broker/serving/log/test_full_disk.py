"""A broker on a full disk: publishing waits, and everything else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from anabranch.errors import AnabranchError
from anabranch.ledger.storage import SegmentStorage
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.disk import DictDisk
from tests.harness.cluster import TOPIC, Brokers, drain
from tests.harness.storage import make
from tests.harness.wire import settle

PAYLOAD = bytes(1000)
ROOM = 300_000


@pytest.fixture
def disk() -> DictDisk:
    return DictDisk()


@pytest.fixture
def storage(disk: DictDisk) -> Callable[[], SegmentStorage]:
    return lambda: make(disk, reserve_bytes=2**20)


async def test_a_publish_gets_a_retryable_error_and_the_producer_begins_again_there(
    brokers: Brokers, disk: DictDisk
) -> None:
    """If later messages were stored, the repetition of the refused one would look like a duplicate."""
    client = await brokers.connect()
    await client.producer(producer_name="p")
    client.publish(b"first", 0)
    assert (await client.receipt()).sequence_id == 0
    capacity, disk.capacity = disk.capacity, disk.used + 300
    client.publish(PAYLOAD, 1)
    client.publish(PAYLOAD, 2)
    refused = await client.expect(pb.CommandSendError)
    assert (refused.error, refused.sequence_id) == (pb.ServiceNotReady, 1)
    disk.capacity = capacity
    await asyncio.sleep(60)
    client.publish(PAYLOAD, 3)
    await settle()
    assert not [r for r in client.inbox if getattr(r, "sequence_id", 0) == 3], "not before 1 and 2"
    again = await client.producer(producer_id=2, producer_name="p")
    assert again.last_sequence_id == 0
    receipts = await client.publish_all([PAYLOAD] * 3, first=1, producer_id=2)
    assert all(receipt.entry != NO_ID for receipt in receipts)


async def test_a_producer_is_refused_with_the_reason_while_the_disk_is_full(
    brokers: Brokers, disk: DictDisk
) -> None:
    client = await brokers.connect()
    await client.producer(producer_name="p")
    disk.capacity = disk.used + 300
    client.publish(PAYLOAD, 0)
    await client.expect(pb.CommandSendError)
    refused = await client.producer(producer_id=2, producer_name="q")
    assert isinstance(refused, pb.CommandError)
    assert refused.error == pb.ServiceNotReady
    assert "accepts no entries" in refused.message


async def test_consumers_and_admin_calls_go_on_and_publishing_follows_by_itself(
    brokers: Brokers, disk: DictDisk
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=False, send_timeout=300)
        for number in range(20):
            await producer.send(b"%d" % number, key="k")
        await asyncio.sleep(5)
        capacity, disk.capacity = disk.capacity, disk.used + 2_000
        sent = [await producer.enqueue(b"%d" % number + PAYLOAD, key="k") for number in range(20, 40)]
        await asyncio.sleep(30)
        controller = await brokers.controller()
        troubles = (await controller.explain())["troubles"]
        assert isinstance(troubles, dict)
        assert "accepts no entries" in troubles["segment 0"]
        disk.capacity = disk.used + 50_000
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        before = await drain(consumer)
        assert [message.data for message in before][:20] == [b"%d" % number for number in range(20)]
        await controller.split(0)
        assert not sent[-1].done()
        disk.capacity = capacity
        async with asyncio.timeout(120):
            for future in sent:
                await future
        rest = await drain(consumer)
        values = [message.data.rstrip(b"\0") for message in (*before, *rest)]
        assert values == [b"%d" % number for number in range(40)]
        assert (await controller.explain())["troubles"] == {}


async def test_a_send_that_finds_no_room_in_time_fails_with_an_error(
    brokers: Brokers, disk: DictDisk
) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, batching=False, send_timeout=5)
        await producer.send(b"first", key="k")
        disk.capacity = disk.used + 300
        with pytest.raises(AnabranchError):
            await producer.send(PAYLOAD, key="k")
