"""Six clients change one topic in the same instant, fifty times: of one broker, and of two workers.

Every call is answered with success or a clear refusal; afterwards the layout is sound, storage holds exactly
what the layout names, every hash can be written and every subscription reads everything in key order.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import AnabranchError, ConflictError, InvalidConfigurationError, NotFoundError
from anabranch.metadata import records
from anabranch.metadata.layouts import layout_of
from anabranch.model.hashing import key_hash
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.routing import Router
from simulation.judges.layout_checks import check

from .conftest import MakeBroker
from .stored import check_stored, keys_over_the_ring

NAME = TopicName.parse("topic://public/default/orders")
CLIENTS = 6
ROUNDS = 50
SECONDS_MAX = 120.0
ACTIVE_MAX = 12
SLOTS = 128
SPLIT_WIDTH_MIN = 4096
"""A third of it spans two slots, so that every segment holds a whole one."""
STEADY = {"steady-stream": "STREAM", "steady-queue": "QUEUE"}
PASSING = {"stream-a": "STREAM", "stream-b": "STREAM", "queue-a": "QUEUE", "queue-b": "QUEUE"}
ANSWER_S_MAX = 10.0

# 409, 412 and 404: another was faster, the layout does not allow it any more, it is gone.
REFUSALS = (ConflictError, InvalidConfigurationError, NotFoundError)

Act = Callable[[AdminClient], None]


KEYS = keys_over_the_ring(SLOTS)


def layout_now(admin: AdminClient) -> Layout:
    record = records.decode(records.TopicRecord, json.dumps(plain(admin.topic_metadata(NAME))).encode())
    return layout_of(record)


def choose(rng: random.Random, layout: Layout) -> tuple[str, Act]:
    """Choose a change that the layout allows now. A faster client may make it impossible meanwhile."""
    active = [segment.id for segment in layout.active]
    at = rng.randrange(len(active))
    kinds = ["merge", "rebucket", "subscribe", "unsubscribe"]
    wide = [segment.id for segment in layout.active if segment.range.width >= SPLIT_WIDTH_MIN]
    kind = rng.choice(kinds + ["split"] * 2 * (len(active) < ACTIVE_MAX))
    if kind == "merge" and len(active) > 1:
        run = active[min(at, len(active) - 2) :][: rng.choice([2, 2, 3])]
        return kind, lambda admin: admin.merge(NAME, run)
    if kind == "rebucket":
        count = rng.choice([1, 2, 4, 8])
        return kind, lambda admin: admin.rebucket(NAME, active[at], bucket_count=count)
    if kind in ("subscribe", "unsubscribe"):
        name = rng.choice(sorted(PASSING))
        if kind == "subscribe":
            return kind, lambda admin: admin.create_subscription(NAME, name, PASSING[name])
        return kind, lambda admin: admin.delete_subscription(NAME, name)
    chosen, parts = rng.choice(wide), rng.choice([None, None, 3])
    return "split", lambda admin: admin.split(NAME, chosen, parts=parts)


@dataclass
class Answers:
    """The answers that the clients received, over all rounds."""

    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def fire(self, url: str, start: threading.Barrier, kind: str, act: Act) -> None:
        with AdminClient(url, timeout_s=ANSWER_S_MAX) as admin:
            start.wait(10)
            began = time.monotonic()
            try:
                act(admin)
                self.done[kind] += 1
            except REFUSALS as error:
                self.refused[kind] += 1
                if not str(error):
                    self.wrong.append(f"{kind}: {type(error).__name__} without a reason")
            except AnabranchError as error:
                self.wrong.append(f"{kind}: {type(error).__name__}: {error}")
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)


def race(
    urls: list[str], changes: Iterable[tuple[str, Act]], answers: Answers, meanwhile: Callable[[], None]
) -> None:
    """Fire all changes at one instant, each from a client of its own; `meanwhile` runs beside them."""
    start = threading.Barrier(CLIENTS + 1)
    threads = [
        threading.Thread(target=answers.fire, args=(urls[number % len(urls)], start, *change))
        for number, change in enumerate(changes)
    ]
    for thread in threads:
        thread.start()
    start.wait(10)
    meanwhile()
    for thread in threads:
        thread.join(ANSWER_S_MAX + 5)
        assert not thread.is_alive(), "a call was never answered"


class RacingPublisher:
    """Sends each key once at a time, numbered over all keys; so every hash is written again and again."""

    def __init__(self, client: anabranch.Client) -> None:
        self._producer = client.create_producer(str(NAME))
        self.sent = 0

    def publish(self) -> None:
        numbers = range(self.sent, self.sent + len(KEYS))
        self._producer.send_many([str(n).encode() for n in numbers], keys=KEYS)
        self.sent += len(KEYS)


def race_on(admin: AdminClient, publisher: RacingPublisher) -> None:
    """Round after round; each client fires at another worker than its neighbour."""
    rng = random.Random(4)
    answers = Answers()
    begun = time.monotonic()
    urls = [broker["webServiceUrl"] for broker in plain(admin.brokers())]
    rounds = 0
    while rounds < ROUNDS:
        assert time.monotonic() - begun < SECONDS_MAX, f"only {rounds} rounds"
        layout = layout_now(admin)
        assert check(layout) == ()
        race(urls, [choose(rng, layout) for _ in range(CLIENTS)], answers, publisher.publish)
        assert answers.wrong == []
        rounds += 1
    assert min(answers.done[kind] for kind in ("split", "merge", "rebucket", "subscribe")) > 0
    assert answers.refused.total() > 0, "the clients never met"


def subscriptions_now(admin: AdminClient) -> dict[str, str]:
    stats = plain(admin.topic_stats(NAME))["subscriptions"]
    return {name: entry["type"] for name, entry in stats.items()}


@pytest.mark.parametrize("workers", [1, 2])
def test_six_clients_race_and_layout_and_storage_agree(make_broker: MakeBroker, workers: int) -> None:
    broker = make_broker(workers=workers, scalableTopicAutoScaleEnabled="false").start()
    with AdminClient(broker.http_url) as admin, anabranch.Client(broker.url) as client:
        admin.create_topic(NAME, segments=2)
        for name, kind in STEADY.items():
            admin.create_subscription(NAME, name, kind)
        publisher = RacingPublisher(client)
        race_on(admin, publisher)

        layout = layout_now(admin)
        assert check(layout) == ()
        why = plain(admin.why(NAME))
        assert (why["operation"], why["waitingChanges"], why["troubles"]) == (None, 0, {})
        written = {Router(layout).segment_for(key_hash(key)).id for key in KEYS}
        assert written == {segment.id for segment in layout.active}
        publisher.publish()
        subscriptions = subscriptions_now(admin)
        assert set(STEADY) <= set(subscriptions) <= {*STEADY, *PASSING}
        for name, kind in subscriptions.items():
            read_all(client, name, kind, publisher.sent)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text
    stored = asyncio.run(check_stored(broker.data))[NAME]
    assert (stored.layout, stored.subscriptions) == (layout, frozenset(subscriptions))


def read_all(client: anabranch.Client, name: str, kind: str, count: int) -> None:
    """Everything that was sent is there once; a stream gives it in key order."""
    by_key: dict[str, list[int]] = defaultdict(list)
    open_ = client.subscribe_stream if kind == "STREAM" else client.subscribe_queue
    with open_(str(NAME), name) as consumer:
        taken = 0
        while taken < count:
            messages = consumer.receive_many(1000, timeout=10)
            assert messages, f"{name}: only {taken} of {count} messages came"
            for message in messages:
                by_key[message.key or ""].append(int(message.data))
            taken += len(messages)
            if isinstance(consumer, anabranch.StreamConsumer):
                consumer.acknowledge_cumulative(messages[-1])
            else:
                consumer.acknowledge(messages)
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(count)), name
    if kind == "STREAM":
        assert all(numbers == sorted(numbers) for numbers in by_key.values()), name
