"""Many large schemas on a real broker: metadata stays usable, memory bounded, and no worker is lost."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.wire import WireClient

from .conftest import MakeBroker

VERSIONS = 20
READS = 100
MEGABYTE = 1024 * 1024
TOPIC = "persistent://public/default/large"
OTHER = "persistent://public/default/other"


def peak_bytes(pid: int) -> int:
    """The most memory that a process has used."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


def schema_of(name: str, size_bytes: int) -> pb.Schema:
    field = {"name": name, "type": "int", "default": 0}
    record = {"type": "record", "name": "Order", "fields": [field], "doc": "." * size_bytes}
    return pb.Schema(name="", type=pb.Schema.Json, schema_data=json.dumps(record).encode())


def large(number: int) -> pb.Schema:
    return schema_of(f"f{number}", MEGABYTE - 1000)


async def test_large_schemas_do_not_hold_up_other_metadata(make_broker: MakeBroker) -> None:
    broker = make_broker(workers=2).start()
    pids = [broker.worker(0), broker.worker(1)]
    writer = await WireClient.dial("127.0.0.1", broker.port)
    await writer.producer(topic=TOPIC)
    readers = [await WireClient.dial("127.0.0.1", broker.port) for _ in range(4)]
    waits_s: list[float] = []
    done = asyncio.Event()

    async def use_metadata() -> None:
        client = await WireClient.dial("127.0.0.1", broker.port)
        number = 0
        while not done.is_set():
            number += 1
            began_s = time.monotonic()
            schema = schema_of(f"f{number}", 0)
            await client.request(pb.CommandGetOrCreateSchema(request_id=0, topic=OTHER, schema=schema))
            waits_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.01)

    await writer.producer(topic=OTHER, producer_id=2)
    using = asyncio.ensure_future(use_metadata())
    for number in range(VERSIONS):
        command = pb.CommandGetOrCreateSchema(request_id=0, topic=TOPIC, schema=large(number))
        assert (await writer.request(command)).schema_version == number.to_bytes(8, "big")

    async def read(client: WireClient) -> None:
        for number in range(READS // len(readers)):
            version = (number % VERSIONS).to_bytes(8, "big")
            command = pb.CommandGetSchema(request_id=0, topic=TOPIC, schema_version=version)
            assert (await client.request(command)).schema == large(number % VERSIONS)

    await asyncio.gather(*map(read, readers))
    done.set()
    await using
    assert len(waits_s) > 5
    assert sorted(waits_s)[len(waits_s) // 2] < 1.0
    assert [broker.worker(0), broker.worker(1)] == pids
    assert max(map(peak_bytes, pids)) < 300 * MEGABYTE
    assert broker.stop() == 0
