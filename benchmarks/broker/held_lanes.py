"""A million messages of one key wait for their consumer: memory, the restart after a kill, and their order.

The messages are single entries, so that the broker holds a million of them. Consumers have fixed hash ranges,
so that the key of one never goes to the other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from anabranch.model.hashing import sticky_hash
from anabranch.protocol import singles
from anabranch.protocol.pb import pulsar_pb2 as pb
from benchmarks.broker.scale_client import FrameClient, timed
from benchmarks.results import Row
from simulation.harness.process import BrokerProcess

TOPIC: Final = "persistent://public/default/held"
SUBSCRIPTION: Final = "readers"
LOWER, UPPER = (0, 32767), (32768, 65535)
RECEIVE_MS: Final = 60_000
SETTLE_S: Final = 1.0
AT_ONCE: Final = 1000

MEMORY_MB_MAX: Final = 64.0
FIRST_S_MAX: Final = 3.0


def _key_in(hashes: tuple[int, int]) -> str:
    names = (f"key-{number}" for number in itertools.count())
    return next(name for name in names if hashes[0] <= sticky_hash(name.encode()) <= hashes[1])


HOT, OTHER = _key_in(LOWER), _key_in(UPPER)


def run(scratch: Path, fast: bool) -> list[Row]:
    count = 100_000 if fast else 1_000_000
    with BrokerProcess(scratch / "data") as broker:
        # The subscription exists and has no consumer, so nothing is read for it yet.
        _Reader(broker.url, UPPER).close()
        _fill(broker.port, count)
        time.sleep(SETTLE_S)
        empty = broker.memory_bytes()
        with _Reader(broker.url, LOWER), _Reader(broker.url, UPPER) as other:
            past_s = timed(lambda: other.expect(OTHER, -1))
            time.sleep(SETTLE_S)
            held_mb = (broker.memory_bytes() - empty) / 1e6
            broker.kill()
        began_s = time.perf_counter()
        broker.start()
        ready_s = time.perf_counter() - began_s
        with _Reader(broker.url, UPPER) as other:
            _send(broker.port, [_entry(OTHER, -2)])
            other.expect(OTHER, -2)
            first_s = time.perf_counter() - began_s
        with _Reader(broker.url, LOWER) as back:
            drained_s = timed(lambda: back.expect_all(HOT, count))
    name = f"{count:,} messages held for one key"
    return [
        _row(f"{name}: memory of the broker", "MB", held_mb, MEMORY_MB_MAX),
        Row(f"{name}: first message behind them", "s", past_s),
        _row(
            f"{name}: restart after kill -9 to the next message of another key",
            "s",
            first_s,
            FIRST_S_MAX,
            ready=ready_s,
        ),
        Row(f"{name}: received in order by the returning consumer", "msg/s", count / drained_s),
    ]


def _row(name: str, unit: str, figure: float, most: float, **series: float) -> Row:
    return Row(name, unit, figure, goal=f"at most {most:g} {unit}", series=series, met=figure <= most)


class _Reader:
    """A consumer of pulsar-client with a fixed range of key hashes, which acknowledges what it expects."""

    def __init__(self, url: str, hashes: tuple[int, int]) -> None:
        import pulsar

        self._client: Any = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._consumer = self._client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            pulsar.ConsumerType.KeyShared,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(
                pulsar.KeySharedMode.Sticky, sticky_ranges=[hashes]
            ),
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def expect(self, key: str, number: int) -> None:
        """Receive and acknowledge the message with this key and number; raises RuntimeError for another."""
        message = self._consumer.receive(RECEIVE_MS)
        found = int(message.data().partition(b" ")[0])
        if (message.partition_key(), found) != (key, number):
            raise RuntimeError(f"message {found} of {message.partition_key()} came instead of {number}")
        self._consumer.acknowledge(message)

    def expect_all(self, key: str, count: int) -> None:
        for number in range(count):
            self.expect(key, number)

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()


def _entry(key: str, number: int) -> bytes:
    value = (b"%d " % number).ljust(100, b"x")
    return singles.build_single(value, key, max(number, 0), producer_name="", publish_time_ms=1)


def _fill(port: int, count: int) -> None:
    """Store the messages of the hot key, and one of the other key behind them."""
    _send(port, itertools.chain((_entry(HOT, number) for number in range(count)), [_entry(OTHER, -1)]))


def _send(port: int, entries: Iterable[bytes]) -> None:
    client = FrameClient(port)
    client.ask([pb.CommandProducer(topic=TOPIC, producer_id=0, request_id=0)])
    sequence = itertools.count()
    left = iter(entries)
    while some := list(itertools.islice(left, AT_ONCE)):
        client.send(0, [(next(sequence), entry) for entry in some])
    client.close()
