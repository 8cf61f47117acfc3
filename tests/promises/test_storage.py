"""README: a receipt means on disk, a resend is stored once, failing disks and entries harm nothing else."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.process.small_disk import SmallDisk
from tests.promises.installed import WIRE, InstalledBroker, result, wait_until

MakeBroker = Callable[..., InstalledBroker]

READ_ALL = """
with Client(url) as client:
    reader = client.create_checkpoint_consumer("orders", start=Checkpoint.earliest())
    found = []
    while messages := reader.receive_many(10_000, timeout=20 if len(found) < {count} else 1):
        found += [[message.key, int(message.data)] for message in messages]
    print(json.dumps(found))
"""


def test_a_receipt_means_on_disk(make_broker: MakeBroker) -> None:
    """The broker is killed while messages are under way; each one with a receipt is there afterwards."""
    broker = make_broker().start()
    program = broker.program("""
        import sys
        async def main():
            client = AsyncClient(url, operation_timeout=2)
            producer = await client.create_producer("orders", send_timeout=2)
            futures = []
            for n in range(20_000):
                futures.append(await producer.enqueue(b"%d" % n, key=f"key-{n % 50}"))
                if n == 5_000:
                    await futures[0]
                    print("under way", flush=True)
                if n % 100 == 0:
                    await asyncio.sleep(0.001)
            done = await asyncio.gather(*futures, return_exceptions=True)
            print(json.dumps([n for n, one in enumerate(done) if not isinstance(one, BaseException)]))
            os._exit(0)
        asyncio.run(main())
        """)
    assert program.stdout is not None
    assert program.stdout.readline() == "under way\n"
    broker.kill()
    confirmed = set(result(program))
    assert confirmed
    broker.start()
    found = broker.run(READ_ALL.format(count=len(confirmed)))
    assert confirmed <= {number for _, number in found}


def test_a_resend_is_stored_once_through_a_crash(make_broker: MakeBroker) -> None:
    """The producer sends again after the broker was killed, and again with the same ids after it restarts."""
    broker = make_broker().start()
    send = """
        with Client(url) as client:
            producer = client.create_producer("orders", name="sender", send_timeout=60)
            for n in range({first}, 4_000):
                producer.enqueue(b"%d" % n, key=f"key-{{n % 50}}", sequence_id=n)
                if n == 1_000:
                    print("under way", flush=True)
            producer.flush(timeout=60)
            print(producer.last_sequence_id)
        """
    program = broker.program(send.format(first=0))
    assert program.stdout is not None
    assert program.stdout.readline() == "under way\n"
    broker.restart()
    assert result(program) == 3_999
    assert broker.run(send.format(first=500)) == 3_999
    found = broker.run(READ_ALL.format(count=4_000))
    assert Counter(number for _, number in found) == Counter(range(4_000))


def test_a_full_disk_refuses_publishing_and_nothing_else_and_heals(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    disk = SmallDisk(tmp_path / "small", 64 * 2**20)
    try:
        broker = make_broker("--data", str(disk.root / "data"))
        broker.entrance = disk.entrance
        broker.start()
        broker.tell("produce", "orders", "--key", "alice", "--value", "tea")
        disk.fill()
        refused = broker.run("""
            with Client(url) as client:
                producer = client.create_producer("orders", send_timeout=3)
                try:
                    producer.send(bytes(100_000))
                    print(json.dumps("stored"))
                except AnabranchError as error:
                    print(json.dumps(type(error).__name__))
            """)
        assert refused == "SendTimeoutError"
        assert "anabranch_store_full{" in broker.request("GET", "/metrics")[1]
        read = ("consume", "orders", "--subscription", "s", "--from", "earliest", "--count", "1")
        assert broker.tell(*read) == "alice\ttea\n"
        program = broker.program("""
            with Client(url) as client:
                client.create_producer("orders", send_timeout=60).send(b"again", key="alice")
            """)
        disk.free()
        result(program, 90)
        assert broker.tell(*read) == "alice\tagain\n"
    finally:
        disk.close()


def damage(folder: Path, payload: bytes) -> int:
    """Change one byte of each copy of a payload; returns the number of copies."""
    changed = 0
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        at = data.find(payload)
        if at >= 0:
            path.write_bytes(data[: at + 10] + b"#" + data[at + 11 :])
            changed += 1
    return changed


def test_a_damaged_entry_stops_delivery_or_is_skipped_and_counted(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    broker.run("""
        with Client(url) as client:
            producer = client.create_producer("orders", batching=False)
            for letter in (b"a", b"b", b"c"):
                producer.send(letter * 200, key="alice")
        """)
    broker.kill(signal.SIGTERM)
    assert damage(broker.folder / "anabranch-data" / "stores", b"b" * 200) > 0
    broker.start()
    read = """
        import urllib.request
        with Client(url) as client:
            consumer = client.subscribe_stream("orders", "s", initial_position="earliest")
            found = []
            try:
                while len(found) < 2:
                    found.append(consumer.receive(timeout={wait}).data[:1].decode())
            except TimeoutError:
                pass
            text = urllib.request.urlopen(admin_url + "/metrics").read().decode()
            print(json.dumps([found, "anabranch_delivery_halted{{" in text,
                              "anabranch_damaged_entries_total{{" in text]))
        """
    assert broker.run(read.format(wait=3))[:2] == [["a"], True]
    broker.kill()
    broker.options = ("--set", "damaged_entries=skip")
    broker.start()
    assert broker.run(read.format(wait=20)) == [["a", "c"], True, True]


RAW_ENTRIES = """
from google_crc32c import value as crc

def entry(payload, *, honest=True):
    fields = dict(producer_name="raw", sequence_id=0, publish_time=1)
    metadata = pb.MessageMetadata(compression=pb.LZ4, uncompressed_size=100, **fields).SerializeToString()
    body = struct.pack(">I", len(metadata)) + metadata + payload
    return struct.pack(">HI", 0x0E01, crc(body) if honest else 1) + body

def send(number, entry):
    command = pb.CommandSend(producer_id=1, sequence_id=number, num_messages=1)
    return ask("send", pb.BaseCommand.SEND, command, entry)

topic = "persistent://public/default/raw"
ask("producer", pb.BaseCommand.PRODUCER, pb.CommandProducer(topic=topic, producer_id=1, request_id=1))
stored = send(0, entry(b"this is not LZ4"))
refused = send(1, entry(b"anything", honest=False))
print(json.dumps([stored.HasField("send_receipt"), refused.HasField("send_error")]))
"""


def test_a_corrupt_entry_affects_no_other_entry(broker: InstalledBroker) -> None:
    """The broker refuses a wrong checksum; a consumer passes over an entry that it cannot decompress."""
    broker.tell("produce", "persistent://public/default/raw", "--value", "first")
    assert broker.run(WIRE + RAW_ENTRIES) == [True, True]
    broker.tell("produce", "persistent://public/default/raw", "--value", "last")
    found = broker.run("""
        def read(name, **options):
            consumer = client.subscribe_queue("persistent://public/default/raw", name,
                                              initial_position="earliest", **options)
            found = []
            while len(found) < (3 if options else 2):
                try:
                    found.append(consumer.receive(timeout=10).data.decode())
                except BadEntryError:
                    found.append("raised")
            return found, consumer.bad_entry_count
        with Client(url) as client:
            print(json.dumps([read("skipping"), read("failing", bad_entries="fail")]))
        """)
    assert found == [[["first", "last"], 1], [["first", "raised", "last"], 1]]


def test_acknowledged_messages_are_kept_for_seven_days(broker: InstalledBroker) -> None:
    config = broker.tell("config")
    (seconds,) = [line for line in config.splitlines() if line.startswith("segment_retention_s")]
    assert int(float(seconds.partition("=")[2].replace("_", ""))) == 7 * 24 * 3600
    wait_until(lambda: broker.request("GET", "/admin/v2/brokers/health")[0] == 200, "a healthy broker")
