"""SIGKILL at every step of a split and a merge, as a real process."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable

import pytest

import anabranch
from anabranch.testing.process import BrokerProcess

STEPS = ["planned", "created.first", "created", "sealed.first", "sealed", "committed"]
KEYS = [f"key-{n}" for n in range(64)]
TOPIC = "topic://public/default/orders"


def call(broker: BrokerProcess, method: str, path: str) -> None:
    request = urllib.request.Request(
        f"{broker.http_url}/admin/v2/scalable/public/default/orders{path}", method=method
    )
    with urllib.request.urlopen(request, timeout=20):
        pass


def call_until_it_dies(broker: BrokerProcess, path: str) -> None:
    with pytest.raises((urllib.error.URLError, http.client.HTTPException, ConnectionError)):
        call(broker, "POST", path)
    broker.wait(10)


def publish(client: anabranch.Client, first: int, count: int) -> None:
    producer = client.create_producer(TOPIC, name=f"p-{first}")
    futures = [
        producer.enqueue(str(n).encode(), key=KEYS[n % len(KEYS)]) for n in range(first, first + count)
    ]
    producer.flush()
    for future in futures:
        future.result(timeout=20)
    producer.close()


def consume(client: anabranch.Client, count: int) -> dict[str, list[int]]:
    by_key: dict[str, list[int]] = defaultdict(list)
    consumer = client.subscribe_stream(TOPIC, "reader", initial_position="earliest")
    taken = 0
    while taken < count:
        messages = consumer.receive_many(1000, timeout=20)
        assert messages, f"only {taken} of {count} messages came"
        for message in messages:
            by_key[message.key or ""].append(int(message.value))
        taken += len(messages)
        consumer.acknowledge_cumulative(messages[-1])
    assert not consumer.receive_many(1, timeout=0.3), "a message came twice"
    consumer.close()
    return by_key


def check_everything_once_in_order(by_key: dict[str, list[int]], count: int) -> None:
    assert all(values == sorted(values) for values in by_key.values())
    assert sorted(n for values in by_key.values() for n in values) == list(range(count))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("kind", "segments", "path"), [("split", 1, "/split/0"), ("merge", 2, "/merge/0/1")])
def test_an_operation_killed_at_a_step_is_finished_by_the_next_start(
    make_broker: Callable[..., BrokerProcess], kind: str, segments: int, path: str, step: str
) -> None:
    broker = make_broker(scalableTopicAutoScaleEnabled="false").start(failpoints=f"{kind}.{step}=kill")
    call(broker, "PUT", f"?numInitialSegments={segments}")
    call(broker, "PUT", "/subscriptions/reader?type=STREAM")
    with anabranch.Client(broker.url) as client:
        publish(client, 0, 500)
    call_until_it_dies(broker, path)
    broker.start()
    restarted = time.monotonic()
    with anabranch.Client(broker.url) as client:
        publish(client, 500, 500)
        assert time.monotonic() - restarted < 5, "every hash is writable soon after the restart, without help"
        check_everything_once_in_order(consume(client, 1000), 1000)


def test_producer_with_thousands_in_flight_survives_kill_and_splits(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    total = 20_000
    broker = make_broker(scalableTopicAutoScaleEnabled="false").start()
    call(broker, "PUT", "?numInitialSegments=1")
    call(broker, "PUT", "/subscriptions/reader?type=STREAM")
    with anabranch.Client(broker.url) as client:
        producer = client.create_producer(TOPIC, send_timeout=60.0)
        futures = []
        for n in range(total):
            futures.append(producer.enqueue(str(n).encode(), key=KEYS[n % len(KEYS)]))
            if n == total // 4:
                call(broker, "POST", "/split/0")
            if n == total // 2:
                broker.kill()
                broker.start()
            if n == 3 * total // 4:
                call(broker, "POST", "/merge/1/2")
        producer.flush()
        for future in futures:
            future.result(timeout=30)
        producer.close()
        check_everything_once_in_order(consume(client, total), total)
