"""The latency of sends during splits and merges: on the wire, and through our client."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context

from anabranch import AsyncClient, AsyncProducer
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.client.produce.futures import SendFuture
from anabranch.model.names import TopicName
from benchmarks.layout.wire_flood import WireFlood
from benchmarks.results import Row, percentile_ms
from simulation.harness.process import BrokerProcess

IN_FLIGHT = 5000
NAME = TopicName.parse("topic://public/default/bench-layout")
KEYS = [f"key-{n}" for n in range(1000)]

Span = tuple[float, float]
"""Begin and end on the monotonic clock, which all processes share."""


def active_segments(admin: AdminClient) -> list[int]:
    """Return the ids of the active segments, by range."""
    segments = plain(admin.topic_metadata(NAME))["segments"].values()
    active = [(s["hashRange"]["start"], s["segmentId"]) for s in segments if s["state"] == "ACTIVE"]
    return [id_ for _, id_ in sorted(active)]


def change_layout(admin: AdminClient, number: int) -> None:
    """Split the only segment if `number` is even, else merge the two."""
    active = active_segments(admin)
    if number % 2 == 0:
        admin.split(NAME, active[0])
    else:
        admin.merge(NAME, active)


def quiet_span(seconds: float) -> Span:
    began = time.perf_counter()
    time.sleep(seconds)
    return began, time.perf_counter()


def timed_change(http_url: str, number: int) -> Span:
    with AdminClient(http_url) as admin:
        began = time.perf_counter()
        change_layout(admin, number)
        return began, time.perf_counter()


def _latencies(sent: Sequence[float], answered: Sequence[float], spans: Sequence[Span]) -> list[float]:
    """Return the latencies of the sends that were under way in one of these spans of time."""
    return [
        end - begin
        for begin, end in zip(sent, answered, strict=True)
        if any(begin <= last and end >= first for first, last in spans)
    ]


def _silence(answered: Sequence[float], span: Span) -> float:
    """Return the longest time without a receipt that overlaps the span."""
    return max(
        later - sooner
        for sooner, later in pairwise(sorted(answered))
        if later >= span[0] and sooner <= span[1]
    )


class _Operator:
    """Changes the layout from another process, so that the flood keeps its interpreter to itself."""

    def __init__(self, flood: WireFlood, http_url: str, changes: int, executor: ProcessPoolExecutor) -> None:
        self.spans: list[Span] = []
        self._flood = flood
        self._left = [partial(timed_change, http_url, number) for number in reversed(range(changes))]
        self._executor = executor
        self._running: Future[Span] | None = executor.submit(quiet_span, 1.0)
        self._next_at = 0.0

    def done(self) -> bool:
        """Begin the next change when the last one has ended and the window is full."""
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


def measure_wire(broker: BrokerProcess, admin: AdminClient, fast: bool) -> list[Row]:
    admin.create_topic(NAME)
    flood = WireFlood(broker.port, NAME, KEYS, IN_FLIGHT)
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        executor.submit(time.perf_counter).result()
        operator = _Operator(flood, broker.http_url, 6 if fast else 20, executor)
        flood.run(operator.done)
    flood.close()
    asyncio.run(_check_order(broker, len(flood.sent)))
    quiet, *spans = operator.spans
    during, before = (_latencies(flood.sent, flood.answered, part) for part in (spans, [quiet]))
    silences = [_silence(flood.answered, span) for span in spans]
    name, peer = "on the wire, 5,000 unanswered, split and merge", "no operation"
    p99, longest = percentile_ms(during, 99), max(silences)
    return [
        Row(f"{name}: send, p99", "ms", p99, peer, percentile_ms(before, 99), "p99 250 ms", met=p99 <= 250),
        Row(f"{name}: send, max", "ms", max(during) * 1e3, peer, max(before) * 1e3),
        Row(f"{name}: no receipt for", "ms", longest * 1e3, peer, _silence(flood.answered, quiet) * 1e3),
    ]


class _Flood:
    """Keeps IN_FLIGHT sends unanswered and notes their latency; values count up to show the order."""

    def __init__(self, producer: AsyncProducer[bytes]) -> None:
        self._producer = producer
        self._window = asyncio.Semaphore(IN_FLIGHT)
        self.full = asyncio.Event()
        # Arrays, because each collection of garbage would visit the million items of a list: 50 ms and more.
        self.sent = array("d")
        self.answered = array("d")
        self.failures: list[BaseException] = []
        self._numbers: dict[SendFuture, int] = {}

    async def send_until(self, done: asyncio.Task[list[Span]]) -> None:
        while not done.done():
            await self._window.acquire()
            if self._window.locked():
                self.full.set()
            await self._send(len(self.sent))
        await self._producer.flush()
        # The callbacks of the last batch run in the next iteration of the loop.
        await asyncio.sleep(0)

    async def _send(self, number: int) -> None:
        self.sent.append(time.perf_counter())
        self.answered.append(0.0)
        outcome = await self._producer.enqueue(b"%d" % number, key=KEYS[number % len(KEYS)])
        # A closure for each message would make collections of garbage the longest pauses of the flood.
        self._numbers[outcome] = number
        outcome.add_done_callback(self._settled)

    def _settled(self, outcome: SendFuture) -> None:
        self.answered[self._numbers.pop(outcome)] = time.perf_counter()
        self._window.release()
        error = outcome.exception()
        if error is not None:
            self.failures.append(error)


async def _disturb(flood: _Flood, http_url: str, changes: int) -> list[Span]:
    """Wait a second, then change the layout from another process, each time with a full window."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, get_context("spawn")) as operator:
        await loop.run_in_executor(operator, time.perf_counter)
        spans = [await loop.run_in_executor(operator, quiet_span, 1.0)]
        for number in range(changes):
            flood.full.clear()
            await flood.full.wait()
            spans.append(await loop.run_in_executor(operator, timed_change, http_url, number))
            await asyncio.sleep(0.2)
    return spans


async def _check_order(broker: BrokerProcess, count: int) -> None:
    """Check that every message is stored once, in key order."""
    newest = dict.fromkeys(KEYS, -1)
    taken = 0
    async with AsyncClient(broker.url) as client:
        consumer = await client.subscribe_stream(str(NAME), "check", initial_position="earliest")
        while taken < count:
            messages = await consumer.receive_many(1000, timeout=20)
            for message in messages:
                number, key = int(message.data), message.key or ""
                if number != (newest[key] + len(KEYS) if newest[key] >= 0 else KEYS.index(key)):
                    raise RuntimeError(f"{key}: message {number} follows {newest[key]}")
                newest[key] = number
            taken += len(messages)
            await consumer.acknowledge_cumulative(messages[-1])


async def _run_stall(broker: BrokerProcess, changes: int) -> list[Row]:
    async with AsyncClient(broker.url) as client:
        flood = _Flood(await client.create_producer(str(NAME)))
        operations = asyncio.create_task(_disturb(flood, broker.http_url, changes))
        await flood.send_until(operations)
        quiet, *spans = await operations
    if flood.failures:
        raise RuntimeError(f"{len(flood.failures)} sends failed") from flood.failures[0]
    await _check_order(broker, len(flood.sent))
    during, before = (_latencies(flood.sent, flood.answered, part) for part in (spans, [quiet]))
    name, peer = "our client, 5,000 unanswered, split and merge", "no operation"
    p99, quiet_p99, goal = percentile_ms(during, 99), percentile_ms(before, 99), "ratio at most 2"
    return [
        Row(f"{name}: send, p99", "ms", p99, peer, quiet_p99, goal, met=p99 <= 2 * quiet_p99),
        Row(f"{name}: send, max", "ms", max(during) * 1e3, peer, max(before) * 1e3),
    ]


def measure_client(broker: BrokerProcess, admin: AdminClient, fast: bool) -> list[Row]:
    admin.create_topic(NAME)
    return asyncio.run(_run_stall(broker, 6 if fast else 10))
