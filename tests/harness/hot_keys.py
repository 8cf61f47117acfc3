"""Publishers and consumers of hot keys over the wire; a test gives permits and acknowledges as it likes."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from anabranch.model.hashing import sticky_hash
from anabranch.protocol.commands import Delivery, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.wire import WireClient, value_of

KEY_SHARED = pb.CommandSubscribe.Key_Shared
IN_FLIGHT = 2000
"""Unanswered messages of a publisher."""


def half(upper: bool) -> pb.KeySharedMeta:
    """The lower or the upper half of the hashes."""
    start, end = (32768, 65535) if upper else (0, 32767)
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end)])


def auto_split() -> pb.KeySharedMeta:
    return pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)


def keys_of_half(upper: bool, count: int) -> list[str]:
    """Keys with different hashes in one half."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        key = f"key-{number}"
        slot = sticky_hash(key.encode())
        if (slot >= 32768) == upper:
            found.setdefault(slot, key)
        number += 1
    return list(found.values())


class HotPublisher:
    """Publishes messages that count up for each key, unbatched."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._sequence = 0
        self.numbers: dict[str, int] = defaultdict(int)

    @classmethod
    async def open(cls, port: int, numbers: dict[str, int] | None = None) -> HotPublisher:
        client = await WireClient.dial("127.0.0.1", port)
        await client.producer()
        made = cls(client)
        made.numbers.update(numbers or {})
        return made

    async def publish(self, keys: Iterable[str]) -> None:
        """Publish one message of each key, in this order; durable when this returns."""
        client, unanswered = self._client, 0
        for key in keys:
            client.publish(b"%s:%d" % (key.encode(), self.numbers[key]), self._sequence, key=key)
            self.numbers[key] += 1
            self._sequence += 1
            unanswered += 1
            if unanswered >= IN_FLIGHT:
                unanswered -= await self._receipts(1)
        while unanswered:
            unanswered -= await self._receipts(1)

    async def _receipts(self, least: int) -> int:
        await until(lambda: len(self._client.inbox) >= least, "receipts come", 60)
        receipts, self._client.inbox = self._client.inbox, []
        assert all(isinstance(one, SendReceipt) for one in receipts)
        return len(receipts)


class HotConsumer:
    """A Key_Shared consumer that checks the order of each key."""

    def __init__(self, client: WireClient, number: int) -> None:
        self.client = client
        self._id = number
        self.seen: dict[str, int] = {}
        """The highest number of each key."""
        self.count = 0
        self.unacknowledged: list[Delivery] = []

    @classmethod
    async def open(cls, port: int, number: int, meta: pb.KeySharedMeta, permits: int) -> HotConsumer:
        client = await WireClient.dial("127.0.0.1", port)
        made = cls(client, number)
        await client.subscribe(
            kind=KEY_SHARED, consumer_id=number, name=f"c{number}", permits=permits, keySharedMeta=meta
        )
        return made

    def take(self, *, acknowledge: bool = True) -> int:
        """Take the deliveries that have come, in order of each key, and ask for as many again."""
        got = self.client.has(Delivery)
        self.client.inbox.clear()
        for delivery in got:
            key, number = value_of(delivery).decode().split(":")
            before = self.seen.get(key, int(number) - 1)
            assert int(number) <= before + 1, f"{key}: {number} came after {before}"
            self.seen[key] = max(before, int(number))
        self.count += len(got)
        if acknowledge and got:
            self.client.acknowledge(*got, consumer_id=self._id)
            self.client.flow(len(got), self._id)
        elif got:
            self.unacknowledged += got
        return len(got)

    async def take_until(self, done: Callable[[], bool], within_s: float) -> None:
        """Take deliveries until `done`."""

        def taken() -> bool:
            self.take()
            return done()

        await until(
            taken, f"consumer {self._id} has all its messages; it has {len(self.seen)} keys", within_s
        )

    def has(self, numbers: dict[str, int], keys: Sequence[str]) -> bool:
        """Whether it has every message of these keys, given the next number of each."""
        return all(self.seen.get(key, -1) == numbers[key] - 1 for key in keys)

    def flow(self, permits: int) -> None:
        self.client.flow(permits, self._id)

    def close(self) -> None:
        self.client.close()


async def until(done: Callable[[], bool], what: str, within_s: float) -> None:
    """Poll until `done`; an AssertionError says which event did not come."""
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.005)
