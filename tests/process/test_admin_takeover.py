"""Admin calls at every worker while leaders die or stand still in the midst of them: answered, done once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import ConflictError, ConnectError, InvalidConfigurationError, NotFoundError
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import TopicRecord
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from simulation.judges.layout_checks import check

from .conftest import MakeBroker

WORKERS = 3
PATIENCE_S = 60.0
STEPS = (
    "split.planned=kill",
    "split.sealed.first=kill",
    "split.committed=kill",
    "split.created=stop",
    "merge.created=kill",
    "merge.inherited=kill",
    "rebucket.sealed=stop",
    "create.planned=kill",
    "subscription.create.recorded=kill",
    "subscription.delete.applied=kill",
    "delete.marked=kill",
    "delete.listed=kill",
)
"""Faults, one after the other, for the first worker that reaches a step."""

# Made before there are threads: msgspec does not survive when several meet a type for the first time.
RECORD = msgspec.json.Decoder(TopicRecord)

REFUSALS = (ConflictError, InvalidConfigurationError, NotFoundError)


class Operator:
    """Makes and changes topics through one worker, each change once, and fails at an unexpected answer."""

    def __init__(self, number: int, url: str, service_url: str, stopping: threading.Event) -> None:
        self.rounds = 0
        self._number = number
        self._admin = AdminClient(url)
        self._service = AdminClient(service_url)
        self._stopping = stopping

    def run(self) -> Operator:
        with self._admin, self._service:
            while not self._stopping.is_set():
                self._round(TopicName.parse(f"topic://public/default/t-{self._number}-{self.rounds}"))
                self.rounds += 1
        return self

    def _round(self, topic: TopicName) -> None:
        admin = self._admin
        self._change(lambda: admin.create_topic(topic, 2), lambda: str(topic) in self._topics())
        # A worker that died while it made the topic may have used some numbers.
        epoch, first = self._epoch(topic), min(self._record(topic).segments)
        self._change(lambda: admin.split(topic, first), lambda: self._epoch(topic) == epoch + 1)
        self._change(lambda: admin.create_subscription(topic, "s"), lambda: "s" in self._subscriptions(topic))
        self._change(
            lambda: admin.merge(topic, [first + 3, first + 2]), lambda: self._epoch(topic) == epoch + 2
        )
        self._change(
            lambda: admin.rebucket(topic, first + 4, bucket_count=1),
            lambda: self._epoch(topic) == epoch + 3,
        )
        self._change(lambda: admin.delete_subscription(topic, "s"), lambda: not self._subscriptions(topic))
        record = self._record(topic)
        assert (check(layout_of(record)), record.intent) == ((), None)
        assert sorted(record.segments) == [*range(first, first + 6)]
        assert self._read(lambda: plain(admin.why(topic)))["epoch"] == epoch + 3
        self._change(lambda: admin.delete_topic(topic), lambda: str(topic) not in self._topics())

    def _change(self, ask: Callable[[], None], made: Callable[[], bool]) -> None:
        """Repeat a change until it is answered or visible. It must not be visible before the first call."""
        assert not made()
        try:
            ask()
        except ConnectError:
            # Its worker died before it could answer.
            while not made():
                try:
                    ask()
                except ConnectError:
                    time.sleep(0.05)
                except REFUSALS:
                    # The worker that died had passed it on.
                    assert made()
        assert made()

    def _read(self, ask: Callable[[], dict[str, object]]) -> dict[str, object]:
        while True:
            try:
                return ask()
            except ConnectError:
                time.sleep(0.05)

    def _topics(self) -> list[str]:
        return self._service.list_topics("public/default")

    def _epoch(self, topic: TopicName) -> int:
        return self._record(topic).epoch

    def _record(self, topic: TopicName) -> TopicRecord:
        return RECORD.decode(json.dumps(plain(self._service.topic_metadata(topic))))

    def _subscriptions(self, topic: TopicName) -> dict[str, object]:
        return dict(plain(self._service.topic_stats(topic))["subscriptions"])


def losses(broker: BrokerProcess, file: Path) -> Iterator[str]:
    """Kill a worker at each step in turn; the next fault is armed when every store has its worker."""
    for step in STEPS:
        file.write_text(step)
        deadline = time.monotonic() + PATIENCE_S
        while file.exists():
            assert time.monotonic() < deadline, f"no worker reaches {step}"
            time.sleep(0.02)
        for number in range(WORKERS):
            broker.worker(number)
        yield step


def test_every_call_is_answered_and_done_once_while_leaders_are_lost(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    file = tmp_path / "failpoints"
    broker = make_broker(workers=WORKERS, lease_s=4, **{"auto_scale.enabled": "false"}).start(
        failpoints=f"@{file}"
    )
    with AdminClient(broker.http_url) as service:
        addresses = service.call("GET", "/admin/v2/brokers/standalone")
    assert len(addresses) == WORKERS
    stopping = threading.Event()
    operators = [
        Operator(number, f"http://{address}", broker.http_url, stopping)
        for number, address in enumerate(addresses)
    ]
    with ThreadPoolExecutor(WORKERS) as pool:
        working = [pool.submit(operator.run) for operator in operators]
        try:
            for _ in losses(broker, file):
                for future in working:
                    if future.done():
                        future.result()
        finally:
            stopping.set()
            file.unlink(missing_ok=True)
        for future in working:
            assert future.result().rounds > 0
    with AdminClient(broker.http_url) as service:
        assert service.list_topics("public/default") == []
    assert broker.stop() == 0
