"""What splits and merges cost those who use the topic meanwhile, and what they leave behind.

All figures are seen from outside: on the wire, through our client, the admin API, the data directory and the
kernel.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

from anabranch import AsyncClient, AsyncProducer, AsyncStreamConsumer
from anabranch.admin.client import AdminClient
from anabranch.bench.results import Row
from anabranch.bench.wire_flood import WireFlood
from anabranch.model.names import TopicName
from anabranch.testing.process import BrokerProcess

NAME = TopicName.parse("topic://public/default/bench-layout")
VALUE = b"x" * 100
KEYS = [f"key-{n}" for n in range(1000)]
IN_FLIGHT = 5000
BY_HAND: dict[str, object] = {"scalableTopicAutoScaleEnabled": "false"}
SETTLE_S_MAX = 10.0


def run(scratch: Path, fast: bool) -> list[Row]:
    rows: list[Row] = []
    for part in (_wire, _stall, _follow, _wide, _cycles):
        print(f"    {part.__name__.strip('_')}", file=sys.stderr, flush=True)
        rows += part(scratch / part.__name__.strip("_"), fast)
    return rows


def _percentile(times: Sequence[float], at: int) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[at - 1] * 1e3


def _active(admin: AdminClient) -> list[int]:
    """Ids of the active segments, by range."""
    segments = admin.topic_metadata(NAME)["segments"].values()
    active = [(s["hashRange"]["start"], s["segmentId"]) for s in segments if s["state"] == "ACTIVE"]
    return [id_ for _, id_ in sorted(active)]


def _change(admin: AdminClient, number: int) -> None:
    """Split the one segment, or merge the two."""
    active = _active(admin)
    if number % 2 == 0:
        admin.split(NAME, active[0])
    else:
        admin.merge(NAME, active)


# A producer with thousands of unanswered sends, on the wire.

Span = tuple[float, float]


def _under_way(sent: Sequence[float], answered: Sequence[float], spans: Sequence[Span]) -> list[Span]:
    """When the sends that were under way in one of these spans of time were sent and answered."""
    return [
        (begin, end)
        for begin, end in zip(sent, answered, strict=True)
        if any(begin <= last and end >= first for first, last in spans)
    ]


def _silence(answered: Sequence[float], span: Span) -> float:
    """The longest time without any receipt that touched the span."""
    return max(
        later - sooner
        for sooner, later in pairwise(sorted(answered))
        if later >= span[0] and sooner <= span[1]
    )


class _Operator:
    """Changes the layout from another process, whose interpreter is not the flood's.

    Both processes read the same monotonic clock.
    """

    def __init__(self, flood: WireFlood, http_url: str, changes: int, executor: ProcessPoolExecutor) -> None:
        self.spans: list[Span] = []
        self._flood = flood
        self._left = [partial(_timed_change, http_url, number) for number in reversed(range(changes))]
        self._executor = executor
        self._running: Future[Span] | None = executor.submit(_quiet_span, 1.0)
        self._next_at = 0.0

    def done(self) -> bool:
        """Begin the next change when the last one is over and all sends of the window are unanswered."""
        if self._running is not None:
            if not self._running.done():
                return False
            self.spans.append(self._running.result())
            self._running, self._flood.full = None, False
            self._next_at = time.perf_counter() + 0.3
        if time.perf_counter() < self._next_at:
            self._flood.full = False
        elif not self._left:
            return True
        elif self._flood.full:
            self._running = self._executor.submit(self._left.pop())
        return False


def _quiet_span(seconds: float) -> Span:
    began = time.perf_counter()
    time.sleep(seconds)
    return began, time.perf_counter()


def _wire(scratch: Path, fast: bool) -> list[Row]:
    scratch.mkdir()
    with BrokerProcess(scratch / "data", BY_HAND) as broker, AdminClient(broker.http_url) as admin:
        admin.create_topic(NAME)
        flood = WireFlood(broker.port, NAME, KEYS, IN_FLIGHT)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
            executor.submit(time.perf_counter).result()
            operator = _Operator(flood, broker.http_url, 6 if fast else 20, executor)
            flood.run(operator.done)
        flood.close()
        asyncio.run(_read_back(broker, len(flood.sent)))
    quiet, *spans = operator.spans
    during, before = (
        [end - begin for begin, end in _under_way(flood.sent, flood.answered, part)]
        for part in (spans, [quiet])
    )
    silences = [_silence(flood.answered, span) for span in spans]
    name, peer = "on the wire, 5,000 unanswered, split and merge", "no operation"
    p99, longest = _percentile(during, 99), max(silences)
    return [
        Row(f"{name}: send, p99", "ms", p99, peer, _percentile(before, 99), "p99 250 ms", met=p99 <= 250),
        Row(f"{name}: send, max", "ms", max(during) * 1e3, peer, max(before) * 1e3),
        Row(f"{name}: no receipt for", "ms", longest * 1e3, peer, _silence(flood.answered, quiet) * 1e3),
    ]


async def _read_back(broker: BrokerProcess, count: int) -> None:
    async with AsyncClient(broker.url) as client:
        await _check_order(client, count)


# The same through our client.


class _Flood:
    """Keeps IN_FLIGHT sends unanswered and notes how long each took; values count up to show the order."""

    def __init__(self, producer: AsyncProducer[bytes]) -> None:
        self._producer = producer
        self._window = asyncio.Semaphore(IN_FLIGHT)
        self.full = asyncio.Event()
        self.sent: list[float] = []
        self.answered: list[float] = []
        self.failures: list[BaseException] = []

    async def send_until(self, done: asyncio.Task[list[Span]]) -> None:
        while not done.done():
            await self._window.acquire()
            if self._window.locked():
                self.full.set()
            await self._send(len(self.sent))
        await self._producer.flush()
        # The callbacks of the last batch run in the loop's next turn.
        await asyncio.sleep(0)

    async def _send(self, number: int) -> None:
        self.sent.append(time.perf_counter())
        self.answered.append(0.0)
        outcome = await self._producer.enqueue(b"%d" % number, key=KEYS[number % len(KEYS)])

        def settled(future: object) -> None:
            self.answered[number] = time.perf_counter()
            self._window.release()
            error = outcome.exception()
            if error is not None:
                self.failures.append(error)

        outcome.add_done_callback(settled)

    def latencies(self, spans: Sequence[Span]) -> list[float]:
        """Of all sends that were under way in one of these spans of time."""
        return [end - begin for begin, end in _under_way(self.sent, self.answered, spans)]


async def _quiet(seconds: float) -> Span:
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    return began, time.perf_counter()


def _timed_change(http_url: str, number: int) -> Span:
    with AdminClient(http_url) as admin:
        began = time.perf_counter()
        _change(admin, number)
        return began, time.perf_counter()


async def _disturb(flood: _Flood, http_url: str, changes: int) -> list[Span]:
    """Undisturbed sending first, then the operations, each begun with a full window; when each ran.

    Another process asks for them: a thread of this one would wait for the interpreter more than for the
    broker. Both processes read the same monotonic clock.
    """
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as operator:
        await loop.run_in_executor(operator, time.perf_counter)
        spans = [await _quiet(1.0)]
        for number in range(changes):
            flood.full.clear()
            await flood.full.wait()
            spans.append(await loop.run_in_executor(operator, _timed_change, http_url, number))
            await asyncio.sleep(0.2)
    return spans


async def _check_order(client: AsyncClient, count: int) -> None:
    """Everything is there once, in key order."""
    consumer = await client.subscribe_stream(str(NAME), "check", initial_position="earliest")
    newest = dict.fromkeys(KEYS, -1)
    taken = 0
    while taken < count:
        messages = await consumer.receive_many(1000, timeout=20)
        for message in messages:
            number, key = int(message.data), message.key or ""
            if number != (newest[key] + len(KEYS) if newest[key] >= 0 else KEYS.index(key)):
                raise RuntimeError(f"{key}: {number} came after {newest[key]}")
            newest[key] = number
        taken += len(messages)
        await consumer.acknowledge_cumulative(messages[-1])
    await consumer.close()


async def _run_stall(broker: BrokerProcess, changes: int) -> list[Row]:
    async with AsyncClient(broker.url) as client:
        flood = _Flood(await client.create_producer(str(NAME)))
        operations = asyncio.create_task(_disturb(flood, broker.http_url, changes))
        await flood.send_until(operations)
        quiet, *spans = await operations
        if flood.failures:
            raise RuntimeError(f"{len(flood.failures)} sends failed") from flood.failures[0]
        await _check_order(client, len(flood.sent))
    during, before = flood.latencies(spans), flood.latencies([quiet])
    name, peer = "our client, 5,000 unanswered, split and merge", "no operation"
    return [
        Row(f"{name}: send, p99", "ms", _percentile(during, 99), peer, _percentile(before, 99)),
        Row(f"{name}: send, max", "ms", max(during) * 1e3, peer, max(before) * 1e3),
    ]


def _stall(scratch: Path, fast: bool) -> list[Row]:
    scratch.mkdir()
    with BrokerProcess(scratch / "data", BY_HAND) as broker, AdminClient(broker.http_url) as admin:
        admin.create_topic(NAME)
        return asyncio.run(_run_stall(broker, 6 if fast else 10))


# A stream consumer that comes to the end of a parent.


async def _read_over(consumer: AsyncStreamConsumer[bytes], parents: Sequence[int], count: int) -> float:
    """Read and acknowledge; seconds from acknowledging the parents' last to the children's first."""
    drained_at = first_at = 0.0
    for _ in range(count):
        message = await consumer.receive(timeout=20)
        if message.id.segment in parents:
            drained_at = time.perf_counter()
        elif not first_at:
            first_at = time.perf_counter()
        await consumer.acknowledge_cumulative(message)
    return first_at - drained_at


async def _run_follow(broker: BrokerProcess, admin: AdminClient, splits: int) -> list[float]:
    keys = KEYS[:20]
    waits: list[float] = []
    async with AsyncClient(broker.url) as client:
        producer = await client.create_producer(str(NAME))
        consumer = await client.subscribe_stream(str(NAME), "follow", initial_position="earliest")
        for number in range(2 * splits):
            parents = await asyncio.to_thread(_active, admin)
            await producer.send_many([VALUE] * len(keys), keys=keys)
            await asyncio.to_thread(_change, admin, number)
            await producer.send_many([VALUE] * len(keys), keys=keys)
            wait = await _read_over(consumer, parents, 2 * len(keys))
            if number % 2 == 0:
                waits.append(wait)
    return waits


def _follow(scratch: Path, fast: bool) -> list[Row]:
    scratch.mkdir()
    with BrokerProcess(scratch / "data", BY_HAND) as broker, AdminClient(broker.http_url) as admin:
        admin.create_topic(NAME)
        waits = asyncio.run(_run_follow(broker, admin, 20 if fast else 100))
    name, p99 = "parent acknowledged to a child's first message", _percentile(waits, 99)
    return [
        Row(f"{name}, p50", "ms", _percentile(waits, 50)),
        Row(f"{name}, p99", "ms", p99, goal="p99 50 ms", met=p99 <= 50),
    ]


# One operation that makes many segments.


def _wide(scratch: Path, fast: bool) -> list[Row]:
    scratch.mkdir()
    seconds: list[float] = []
    with BrokerProcess(scratch / "data", BY_HAND) as broker, AdminClient(broker.http_url) as admin:
        for _ in range(3 if fast else 7):
            admin.create_topic(NAME)
            for number in range(4):
                admin.create_subscription(NAME, f"sub-{number}", "STREAM" if number % 2 else "QUEUE")
            (segment,) = _active(admin)
            began = time.perf_counter()
            admin.split(NAME, segment, parts=64)
            seconds.append(time.perf_counter() - began)
            assert len(_active(admin)) == 64
            admin.delete_topic(NAME, force=True)
    slowest = max(seconds)
    name = "1 to 64 segments at once, 4 subscriptions"
    return [Row(name, "s", slowest, goal="under 5 s", met=slowest < 5)]


# What many cycles leave behind.


class _Footprint:
    """Bytes of the topic's record, files with their folders, and resident memory, when all is pruned."""

    def __init__(self, broker: BrokerProcess, admin: AdminClient) -> None:
        deadline = time.monotonic() + SETTLE_S_MAX
        record = admin.topic_metadata(NAME)
        while time.monotonic() < deadline and (len(record["segments"]) > 1 or record["garbage"]):
            time.sleep(0.05)
            record = admin.topic_metadata(NAME)
        self.record_bytes = len(json.dumps(record, separators=(",", ":")))
        self.files = sum(1 for _ in broker.data.rglob("*"))
        self.memory_bytes = broker.memory_bytes()


async def _run_cycles(broker: BrokerProcess, admin: AdminClient, marks: Sequence[int]) -> list[_Footprint]:
    """Split and merge again and again; a footprint after so many cycles each."""
    footprints: list[_Footprint] = []
    async with AsyncClient(broker.url) as client:
        producer = await client.create_producer(str(NAME))
        consumer = await client.subscribe_stream(str(NAME), "follow", initial_position="earliest")
        for cycle in range(marks[-1] + 1):
            if cycle in marks:
                footprints.append(await asyncio.to_thread(_Footprint, broker, admin))
            for number in range(2):
                await producer.send_many([VALUE] * 100, keys=KEYS[:100])
                await asyncio.to_thread(_change, admin, number)
                taken = 0
                while taken < 100:
                    messages = await consumer.receive_many(100, timeout=20)
                    taken += len(messages)
                    await consumer.acknowledge_cumulative(messages[-1])
    return footprints


def _flat_row(what: str, unit: str, marks: Sequence[int], figures: Sequence[float], slack: float) -> Row:
    """The last figure beside that after the first mark; what grows by more than `slack` is not flat."""
    warm, last = figures[1], figures[-1]
    return Row(
        f"{marks[-1]} split/merge cycles: {what}",
        unit,
        last,
        f"after {marks[1]}",
        warm,
        "flat",
        series={str(mark): figure for mark, figure in zip(marks, figures, strict=True)},
        met=max(figures[1:]) <= warm + slack,
    )


def _cycles(scratch: Path, fast: bool) -> list[Row]:
    scratch.mkdir()
    marks = range(0, 51, 10) if fast else range(0, 501, 100)
    settings = {**BY_HAND, "segment_retention_s": 0, "auto_scale_interval_s": 0.2}
    with BrokerProcess(scratch / "data", settings) as broker, AdminClient(broker.http_url) as admin:
        admin.create_topic(NAME)
        prints = asyncio.run(_run_cycles(broker, admin, marks))
    record = [float(each.record_bytes) for each in prints]
    files = [float(each.files) for each in prints]
    memory = [each.memory_bytes / 1e6 for each in prints]
    return [
        # Ids and times have more digits in the end, files come and go with the journal, memory by the page.
        _flat_row("record", "bytes", marks, record, 0.05 * record[1]),
        _flat_row("files", "files", marks, files, 4),
        _flat_row("memory", "MB", marks, memory, 4),
    ]
