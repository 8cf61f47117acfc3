"""A full disk: the worker ends by itself, and the next worker continues with all confirmed messages."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress

from anabranch import Client
from anabranch.errors import AnabranchError
from anabranch.testing.process import BrokerProcess

MakeBroker = Callable[..., BrokerProcess]


def test_a_worker_whose_disk_fails_ends_and_its_successor_has_all_that_was_confirmed(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker().start()
    confirmed: list[bytes] = []
    with Client(broker.url, operation_timeout=5) as client:
        producer = client.create_producer("topic", name="p", send_timeout=5, batching=False)
        confirmed.append(b"first")
        producer.send(b"first")
        # Every file may grow by little more; then writes fail, as on a full disk.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        with suppress(AnabranchError):
            for number in range(1000):
                payload = b"%d " % number + bytes(10_000)
                producer.send(payload)
                confirmed.append(payload)
        assert broker.wait(20) == 1
    assert "cannot be used any more" in broker.log_text
    broker.start()
    with Client(broker.url) as client:
        consumer = client.subscribe_stream("topic", "s", initial_position="earliest")
        found = [consumer.receive(timeout=10).value for _ in confirmed]
    assert found == confirmed
