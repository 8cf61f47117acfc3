"""README: the snippets, the kinds of consumers, handlers, schemas, and calls that end in time."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

from tests.promises.installed import ROOT, InstalledBroker, free_port, result, wait_until

MakeBroker = Callable[..., InstalledBroker]

PYTHON = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
(FIRST_PROGRAM,) = [block for block in PYTHON if "AsyncClient(" in block]
(HANDLER,) = [block for block in PYTHON if "consumer.run(" in block]


def local(snippet: str, broker: InstalledBroker) -> str:
    return snippet.replace("pulsar://127.0.0.1:6650", broker.url)


def test_the_first_program_runs_as_written(broker: InstalledBroker) -> None:
    text = local(FIRST_PROGRAM, broker).replace('"orders"', '"first"')
    program = broker.program(text)
    out, err = program.communicate(timeout=60)
    assert out == "alice b'one tea'\n", err


def test_the_same_program_blocks_without_its_awaits(broker: InstalledBroker) -> None:
    text = local(FIRST_PROGRAM, broker).replace('"orders"', '"first-blocking"')
    for old, new in (
        ("AsyncClient", "Client"),
        ("await ", ""),
        ("async ", ""),
        ("asyncio.run(main())", "main()"),
    ):
        text = text.replace(old, new)
    out, err = broker.program(text).communicate(timeout=60)
    assert out == "alice b'one tea'\n", err


def test_the_handler_of_the_readme_runs_as_written(broker: InstalledBroker) -> None:
    lines = "".join(f"    {line}\n" for line in HANDLER.splitlines())
    found = broker.run(f"""
async def main():
    charged = []
    async def charge(key, data):
        charged.append([key, data.decode()])
        if len(charged) == 3:
            await client.close()
    client = AsyncClient(url)
    producer = await client.create_producer("handled")
    consumer = await client.subscribe_stream("handled", "billing", initial_position="earliest")
    for n in range(3):
        await producer.send(b"tea %d" % n, key="alice")
{lines}
    print(json.dumps(charged))
asyncio.run(main())
""")
    assert found == [["alice", f"tea {n}"] for n in range(3)]


def test_enqueue_returns_a_future_for_each_message_and_send_many_takes_lists(broker: InstalledBroker) -> None:
    found = broker.run("""
        async def main():
            async with AsyncClient(url) as client:
                producer = await client.create_producer("fast")
                futures = [await producer.enqueue(b"%d" % n, key=f"key-{n % 7}") for n in range(100)]
                ids = {str(await future) for future in futures}
                await producer.send_many([b"%d" % n for n in range(100, 200)],
                                         keys=[f"key-{n % 7}" for n in range(100, 200)])
                consumer = await client.subscribe_stream("fast", "s", initial_position="earliest")
                found = []
                while len(found) < 200:
                    found += await consumer.receive_many(200, timeout=10)
                by_key = {}
                for message in found:
                    by_key.setdefault(message.key, []).append(int(message.data))
                print(json.dumps([len(ids), sum(map(len, by_key.values())),
                                  all(values == sorted(values) for values in by_key.values())]))
        asyncio.run(main())
        """)
    assert found == [100, 200, True]


def test_a_stream_acknowledges_cumulatively(broker: InstalledBroker) -> None:
    found = broker.run("""
        with Client(url) as client:
            client.create_producer("streamed").send_many([b"0", b"1", b"2"], keys=["a", "a", "a"])
            first = client.subscribe_stream("streamed", "s", initial_position="earliest")
            messages = [first.receive(timeout=10) for _ in range(3)]
            first.acknowledge_cumulative(messages[1])
            first.close()
            print(json.dumps([client.subscribe_stream("streamed", "s").receive(timeout=10).data.decode()]))
        """)
    assert found == ["2"]


def test_a_queue_acknowledges_one_by_one_and_negatively(broker: InstalledBroker) -> None:
    found = broker.run("""
        with Client(url) as client:
            client.create_producer("queued").send_many([b"0", b"1", b"2"])
            queue = client.subscribe_queue("queued", "q", initial_position="earliest")
            messages = {m.data: m for m in (queue.receive(timeout=10) for _ in range(3))}
            queue.acknowledge(messages[b"0"])
            queue.acknowledge(messages[b"2"])
            queue.negative_acknowledge(messages[b"1"], delay=0.2)
            again = queue.receive(timeout=10)
            print(json.dumps([again.data.decode(), again.redelivery_count]))
        """)
    assert found == ["1", 1]


def test_a_queue_can_keep_the_order_of_keys(broker: InstalledBroker) -> None:
    found = broker.run("""
        with Client(url) as client:
            client.create_producer("in-order").send_many([b"a0", b"b0", b"a1", b"b1"], keys=list("abab"))
            queue = client.subscribe_queue("in-order", "q", order="key", initial_position="earliest")
            first = queue.receive(timeout=10)
            queue.negative_acknowledge(first, delay=0.5)
            found = []
            while len(found) < 4:
                message = queue.receive(timeout=10)
                queue.acknowledge(message)
                found.append(message.data.decode())
            print(json.dumps(found))
        """)
    assert [one for one in found if one[0] == "a"] == ["a0", "a1"]
    assert [one for one in found if one[0] == "b"] == ["b0", "b1"]
    assert found[:2] == ["b0", "b1"]


def test_a_checkpoint_is_a_value_that_the_application_keeps(broker: InstalledBroker) -> None:
    found = broker.run("""
        with Client(url) as client:
            client.create_producer("checked").send_many([b"0", b"1", b"2"], keys=["a", "a", "a"])
            reader = client.create_checkpoint_consumer("checked", start=Checkpoint.earliest())
            first = reader.receive(timeout=10).data.decode()
            kept = reader.checkpoint().to_bytes()
            reader.close()
            again = client.create_checkpoint_consumer("checked", start=Checkpoint.from_bytes(kept))
            print(json.dumps([first, again.receive(timeout=10).data.decode()]))
        """)
    assert found == ["0", "1"]


def test_a_failing_handler_pauses_its_key_and_no_other(broker: InstalledBroker) -> None:
    found = broker.run("""
        async def main():
            async with AsyncClient(url) as client:
                producer = await client.create_producer("failing")
                keys = [f"key-{n % 20}" for n in range(2000)]
                await producer.send_many([b"%d" % n for n in range(2000)], keys=keys)
                done, failed = [], 0
                stop = asyncio.Event()
                async def handle(message):
                    nonlocal failed
                    if message.key == "key-0":
                        failed += 1
                        raise ValueError("this key fails")
                    done.append([message.key, int(message.data)])
                    if len(done) == 1900:
                        stop.set()
                consumer = await client.subscribe_stream("failing", "s", initial_position="earliest")
                async with asyncio.timeout(40):
                    await consumer.run(handle, stop=stop)
                by_key = {}
                for key, number in done:
                    by_key.setdefault(key, []).append(number)
                print(json.dumps([len(by_key), failed > 0,
                                  all(values == sorted(values) for values in by_key.values())]))
        asyncio.run(main())
        """)
    assert found == [19, True, True]


def test_handlers_of_a_blocking_consumer_run_in_threads(broker: InstalledBroker) -> None:
    found = broker.run("""
        import threading
        with Client(url) as client:
            client.create_producer("threads").send_many([b"x"] * 8, keys=[f"key-{n}" for n in range(8)])
            barrier, stop, done = threading.Barrier(8), threading.Event(), []
            def handle(message):
                barrier.wait(20)  # All eight must run at the same time.
                done.append(threading.current_thread().name)
                if len(done) == 8:
                    stop.set()
            consumer = client.subscribe_stream("threads", "s", initial_position="earliest")
            consumer.run(handle, concurrency=8, stop=stop)
            print(json.dumps(len(set(done))))
        """)
    assert found == 8


def test_values_have_types_that_the_broker_registers_and_checks(broker: InstalledBroker) -> None:
    found = broker.run("""
        from dataclasses import dataclass
        import msgspec
        @dataclass
        class Order:
            item: str
            count: int
        class Parcel(msgspec.Struct):
            item: str
            count: int
        @dataclass
        class Other:
            count: dict[str, str]
        with Client(url) as client:
            client.create_producer("typed", schema=Schema.json(Order)).send(Order("tea", 1), key="alice")
            consumer = client.subscribe_stream("typed", "s", schema=Schema.json(Parcel),
                                               initial_position="earliest")
            value = consumer.receive(timeout=10).value
            try:
                client.create_producer("typed", schema=Schema.json(Other))
                refused = ""
            except IncompatibleSchemaError as error:
                refused = str(error)
            print(json.dumps([type(value).__name__, value.item, value.count, bool(refused)]))
        """)
    assert found == ["Parcel", "tea", 1, True]


def test_calls_end_in_time_when_no_broker_is_there(broker: InstalledBroker) -> None:
    found = broker.run(f"""
        client = Client("pulsar://127.0.0.1:{free_port()}", operation_timeout=1)
        began = time.monotonic()
        errors = []
        for call in (lambda: client.create_producer("t"), lambda: client.layout("t"),
                     lambda: client.subscribe_stream("t", "s")):
            try:
                call()
            except UnreachableError as error:
                errors.append([isinstance(error, TimeoutError), isinstance(error, ConnectionError)])
        client.close()
        print(json.dumps([errors, time.monotonic() - began < 20]))
        """)
    assert found == [[[True, True]] * 3, True]


STOPPED = """
import sys
async def main():
    client = AsyncClient(url, operation_timeout=2)
    producer = await client.create_producer("t", send_timeout=2)
    consumer = await client.subscribe_queue("t", "q")
    await producer.send(b"before")
    await consumer.acknowledge(await consumer.receive(timeout=10))
    print("ready", flush=True)
    sys.stdin.readline()
    async def raised(work):
        began = time.monotonic()
        try:
            await work
        except Exception as error:
            return [type(error).__name__, isinstance(error, TimeoutError), time.monotonic() - began < 15]
    found = {
        "send": await raised(producer.send(b"late")),
        "layout": await raised(client.layout("another")),
        "open": await raised(client.create_producer("another")),
        "receive": await raised(consumer.receive(timeout=1)),
    }
    began = time.monotonic()
    await client.close()
    found["close"] = time.monotonic() - began < 15
    print(json.dumps(found))
asyncio.run(main())
"""


def test_calls_end_in_time_when_the_broker_stands_still(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    program = broker.program(STOPPED)
    assert program.stdout is not None
    assert program.stdin is not None
    assert program.stdout.readline() == "ready\n"
    os.kill(broker.pid, signal.SIGSTOP)
    program.stdin.write("\n")
    program.stdin.flush()
    found = result(program, 90)
    assert found["send"] == ["SendTimeoutError", True, True]
    assert found["layout"][1:] == [True, True]
    assert found["open"][1:] == [True, True]
    assert found["receive"][1:] == [True, True]
    assert found["close"]


def test_closing_ends_waits_and_a_cancelled_call_leaves_its_object_usable(
    broker: InstalledBroker,
) -> None:
    found = broker.run("""
        async def main():
            async with AsyncClient(url) as client:
                consumer = await client.subscribe_stream("waiting", "s")
                waiting = asyncio.ensure_future(consumer.receive())
                await asyncio.sleep(0.2)
                waiting.cancel()
                await asyncio.wait([waiting])
                producer = await client.create_producer("waiting")
                await producer.send(b"still usable")
                usable = (await consumer.receive(timeout=10)).data.decode()

                async def iterate():
                    async for message in consumer:
                        pass
                    return "ended"
                other = await client.subscribe_stream("waiting", "other")
                receiving = asyncio.ensure_future(other.receive())
                iterating = asyncio.ensure_future(iterate())
                await asyncio.sleep(0.2)
                await consumer.close()
                await other.close()
                error = (await asyncio.gather(receiving, return_exceptions=True))[0]
                print(json.dumps([usable, type(error).__name__, await iterating]))
        asyncio.run(main())
        """)
    assert found == ["still usable", "AlreadyClosedError", "ended"]


def test_the_log_names_each_loss_and_return_of_a_broker_once(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    program = broker.program("""
        import logging, sys
        lines = []
        class Kept(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())
        logging.getLogger("anabranch.client").addHandler(Kept())
        logging.getLogger("anabranch.client").setLevel(logging.INFO)
        with Client(url) as client:
            producer = client.create_producer("logged", send_timeout=60)
            producer.send(b"before")
            print("ready", flush=True)
            sys.stdin.readline()
            producer.send(b"after")
        print(json.dumps(lines))
        """)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    broker.restart()
    lines = result(program, 90)
    assert len([line for line in lines if "lost" in line]) == 1, lines
    assert len([line for line in lines if "again" in line or "back" in line]) == 1, lines


def test_a_classic_topic_can_become_a_scalable_one(broker: InstalledBroker) -> None:
    broker.tell(
        "produce", "persistent://public/default/old", "--key", "alice", "--value", "tea {n}", "--count", "2"
    )
    broker.tell("topic", "migrate", "persistent://public/default/old")
    broker.tell("produce", "old", "--key", "alice", "--value", "more")
    shown = wait_until(
        lambda: broker.tell("consume", "old", "--from", "earliest", "--count", "3"), "three messages"
    )
    assert shown == "alice\ttea 0\nalice\ttea 1\nalice\tmore\n"
