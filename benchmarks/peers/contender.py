"""A client that takes part in the comparison, the messages that all of them move, and the pace of sends."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import ClassVar, Final

KEYS: Final = [f"key-{n}" for n in range(1000)]
VALUES: Final = [random.Random(n).randbytes(100) for n in range(1000)]
"""Random values: constant ones would flatter compression and every cache."""

BATCH: Final = 1000
"""Messages per call where a client sends or receives several at once."""

WAIT_S: Final = 30.0
"""The longest wait for a message; a client that waits longer has failed."""

PAUSE_S: Final = 0.002
"""The pause between two sends when one message is sent at a time."""

TICK_S: Final = 0.001
STAMP: Final = struct.Struct(">d")


@dataclass(frozen=True)
class Contender:
    """A client of the server at `address`. Every method runs in a process of its own.

    Rates are messages per second. A client has the settings that its documentation recommends for the job.
    """

    name: ClassVar[str] = ""
    module: ClassVar[str] = ""
    """The package that must be installed."""
    is_ours: ClassVar[bool] = False
    has_queues: ClassVar[bool] = False
    """Whether it acknowledges single messages of a shared subscription."""

    address: str

    def prepare(self, topic: str) -> None:
        """Create the topic, where a server does not do so on first use."""

    def fill(self, topic: str, count: int) -> None:
        """Publish the messages that the consuming jobs read."""
        self.publish_bulk(topic, count)

    def publish_each(self, topic: str, count: int) -> float:
        """Publish one by one, and learn the outcome of each message."""
        raise NotImplementedError

    def publish_bulk(self, topic: str, count: int) -> float:
        """Publish in the fastest way; only failures of the whole are noticed."""
        raise NotImplementedError

    def consume_each(self, topic: str, count: int) -> float:
        """Take and acknowledge one by one, in order."""
        raise NotImplementedError

    def consume_many(self, topic: str, count: int) -> float:
        """Take a thousand at a time and acknowledge the last of them."""
        raise NotImplementedError

    def consume_queue(self, topic: str, count: int) -> float:
        """Take and acknowledge one by one, without order."""
        raise NotImplementedError

    def send_times(self, topic: str, count: int) -> list[float]:
        """The seconds that each of several sends took, one at a time."""
        raise NotImplementedError

    def send_paced(self, topic: str, rate: int, seconds: float) -> None:
        """Send stamped messages at this rate."""
        raise NotImplementedError

    def receive_stamped(self, topic: str, count: int, ready: Event) -> list[float]:
        """Receive and acknowledge stamped messages; return the seconds since each was sent."""
        raise NotImplementedError


class Stopwatch:
    """Measures the rate from the first message on, so that opening a subscription does not count."""

    def __init__(self) -> None:
        self._began = 0.0
        self._first = 0

    def started(self, taken: int = 1) -> None:
        """Note the first messages."""
        self._began, self._first = time.perf_counter(), taken

    def rate(self, count: int) -> float:
        return (count - self._first) / (time.perf_counter() - self._began)


def due(rate: int, seconds: float) -> Iterator[tuple[float, int]]:
    """The pauses before each tick of the clock, and how many messages are due by then."""
    began, sent, total = time.perf_counter(), 0, int(rate * seconds)
    tick = 0
    while sent < total:
        tick += 1
        yield max(0.0, began + tick * TICK_S - time.perf_counter()), 0
        upto = min(total, int((time.perf_counter() - began) * rate))
        yield 0.0, upto - sent
        sent = upto


def stamped(number: int) -> tuple[bytes, str]:
    """A value with the time of its sending, and a key."""
    return STAMP.pack(time.perf_counter()) + VALUES[number % BATCH][STAMP.size :], KEYS[number % BATCH]


def ages(values: Sequence[bytes]) -> list[float]:
    """The seconds since each of these values was sent; all processes share the clock."""
    now = time.perf_counter()
    return [now - STAMP.unpack_from(value)[0] for value in values]
