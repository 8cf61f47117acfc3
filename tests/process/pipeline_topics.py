"""The topic of pipelines in process tests: messages that count up by key."""

from __future__ import annotations

import anabranch

KEYS = 23

Sequences = dict[str, list[int]]
"""The numbers of each key, in the order of the topic."""


def publish(client: anabranch.Client, lo: int, hi: int) -> None:
    producer: anabranch.Producer[bytes] = client.create_producer("orders")
    numbers = range(lo, hi)
    producer.send_many([b"%d" % n for n in numbers], [f"key-{n % KEYS}" for n in numbers])
    producer.close()
