"""The published Java V5 client, unchanged, on our scalable topics.

The Java side (`java/`, one process per producer or consumer) says what it sent and received; this side
drives the broker and judges. Maven fetches the client from Maven Central once; what it made stays in
`build/java-v5`.

5.0.0-M1 routes by the low half of a key's hash and knows no buckets, so that its entries carry no stamps and
its batches hold keys of several buckets.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.interop.building import JVM
from tests.interop.features import FORMS, WORKERS

# The first run downloads some 60 MB.
pytestmark = pytest.mark.timeout(900)

LOGGING = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
TOPIC = TopicName.parse("topic://public/default/orders")
COUNT = 1200
CHILD_WAIT_MS_MAX = 1000
"""What is promised; 0.1 s is usual."""

Event = dict[str, Any]


class Role:
    """One Java process, and the events that it has printed."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.events: list[Event] = []
        self._changed = threading.Condition()
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()

    def of(self, kind: str) -> list[Event]:
        return [event for event in list(self.events) if event["event"] == kind]

    def wait(self, what: str, true: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until a condition holds of the events; fail at once if the process has ended."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not true():
                ended = self._process.poll() is not None and not self._reader.is_alive()
                if ended or time.monotonic() > deadline:
                    verdict = "ended without" if ended else "did not see in time:"
                    log = self.log.read_text()[-6000:]
                    pytest.fail(f"{self.name} {verdict} {what}; last event: {self.events[-3:]}, log:\n{log}")
                self._changed.wait(0.2)

    def wait_for(self, kind: str, count: int = 1, timeout_s: float = 60.0) -> None:
        self.wait(f"{count} times {kind!r}", lambda: len(self.of(kind)) >= count, timeout_s)

    def wait_for_values(self, values: Iterable[str]) -> None:
        wanted = set(values)
        self.wait(f"all of {len(wanted)} values", lambda: wanted <= {e["value"] for e in self.of("received")})

    def stop(self) -> None:
        """Ask a consumer to close, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        self.wait_for("done", timeout_s=20.0)

    def end(self) -> None:
        """End the process, also after a failure."""
        if self._process.poll() is None:
            try:
                self._process.wait(5 if self.of("done") else 0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


Start = Callable[[str, object], Role]


@pytest.fixture(params=WORKERS, ids=FORMS.get)
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """M1 cannot announce that a consumer leaves for good: its share is free after the grace period."""
    settings = {"consumer_grace_s": 1, "workers": request.param, "scalableTopicAutoScaleEnabled": "false"}
    with BrokerProcess(tmp_path / "data", settings) as process:
        yield process


def crash(broker: BrokerProcess, control: AdminClient) -> None:
    """SIGKILL to the process that leads the topic."""
    broker.kill_owner(plain(control.topic_metadata(TOPIC))["store"])


@pytest.fixture
def start(broker: BrokerProcess, classpath: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a role on the topic."""
    with ExitStack() as stack:

        def start_role(kind: str, argument: object) -> Role:
            name = f"{kind}-{len(list(tmp_path.glob('role-*.log')))}"
            command = ["java", *JVM, *LOGGING, "-cp", classpath, "anabranch.Role"]
            command += [kind, broker.url, str(TOPIC), str(argument)]
            role = Role(name, command, tmp_path / f"role-{name}.log")
            stack.callback(role.end)
            return role

        yield start_role


def position(event: Event) -> tuple[int, str]:
    """Segment and V4 message id, out of the text of a V5 one."""
    found = re.fullmatch(r"MessageIdV5\{segment=(\d+), id=([-\d:]+), .*\}", event["id"])
    assert found, event
    return int(found[1]), found[2]


def stored_where(events: Iterable[Event]) -> dict[str, set[tuple[int, str]]]:
    """Value -> the positions it was seen at; more than one means that it is stored twice."""
    seen: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for event in events:
        seen[event["value"]].add(position(event))
    return seen


def check_received(role: str, received: list[Event], sent: dict[str, str]) -> None:
    """Check that no message is lost, invented or stored twice."""
    seen = stored_where(received)
    assert seen.keys() == sent.keys(), f"{role}: lost {sorted(sent.keys() - seen.keys())[:5]}"
    assert {event["value"]: event["key"] for event in received} == sent, role
    doubled = {value: places for value, places in seen.items() if len(places) > 1}
    assert not doubled, f"{role}: {dict(list(doubled.items())[:5])}"


def check_key_order(role: str, received: list[Event]) -> None:
    """Check the order of blocking sends per key, without redeliveries after a crash."""
    firsts: dict[str, Event] = {}
    for event in received:
        firsts.setdefault(event["value"], event)
    numbers: dict[str, list[int]] = defaultdict(list)
    for value, event in firsts.items():
        kind, _, number = value.partition("-")
        if kind == "blocking":
            numbers[event["key"]].append(int(number))
    for key, found in numbers.items():
        assert found == sorted(found), f"{role}: {key} came as {found}"


def check_children_come_soon(
    received: list[Event], sent: list[Event], *, parents: set[int], children: set[int]
) -> None:
    """A stream consumer receives the first message of the children once the parents are read."""

    def times(events: list[Event], segments: set[int]) -> list[int]:
        return [event["at_ms"] for event in events if position(event)[0] in segments]

    assert max(times(received, parents)) <= min(times(received, children)), f"{children} before {parents}"
    possible = max(max(times(received, parents)), min(times(sent, children)))
    waited_ms = min(times(received, children)) - possible
    print(f"segments {sorted(children)}: first message {waited_ms} ms after it could come")
    assert waited_ms <= CHILD_WAIT_MS_MAX, f"{children} came {waited_ms} ms late"


def test_all_kinds_of_clients_go_through_a_split_a_crash_and_a_merge(
    broker: BrokerProcess, start: Start
) -> None:
    with AdminClient(broker.http_url) as control:
        control.create_topic(TOPIC)
        stream, queue, first = start("stream", "s"), start("queue", "q"), start("checkpoint", "earliest")
        for consumer in (stream, queue, first):
            consumer.wait_for("ready")
        blocking, asynchronous = start("blocking", COUNT), start("async", COUNT)

        blocking.wait_for("sent", COUNT // 4)
        control.split(TOPIC, 0)
        blocking.wait_for("sent", COUNT // 2)
        crash(broker, control)
        blocking.wait_for("sent", COUNT * 5 // 8)
        first.stop()
        blocking.wait_for("sent", COUNT * 3 // 4)
        control.merge(TOPIC, [1, 2])
        blocking.wait_for("done")
        asynchronous.wait_for("done")

    sent = {e["value"]: e["key"] for role in (blocking, asynchronous) for e in role.of("sent")}
    assert not asynchronous.of("failed")
    assert len(sent) == 2 * COUNT

    second = start("checkpoint", first.of("checkpoint")[0]["value"])
    early = {event["value"] for event in first.of("received")}
    second.wait_for_values(sent.keys() - early)
    for consumer in (stream, queue):
        consumer.wait_for_values(sent)
    for consumer in (stream, queue, second):
        consumer.stop()

    for role in (stream, queue):
        check_received(role.name, role.of("received"), sent)
    check_received("checkpoint", first.of("received") + second.of("received"), sent)
    check_key_order(stream.name, stream.of("received"))
    assert early.isdisjoint({event["value"] for event in second.of("received")})
    assert {position(event)[0] for event in stream.of("received")} == {0, 1, 2, 3}
    receipts = blocking.of("sent") + asynchronous.of("sent")
    check_children_come_soon(stream.of("received"), receipts, parents={0}, children={1, 2})
    check_children_come_soon(stream.of("received"), receipts, parents={1, 2}, children={3})


def start_ready(start: Start) -> Role:
    consumer = start("stream", "s")
    consumer.wait_for("ready")
    return consumer


def active(control: AdminClient) -> list[int]:
    segments = plain(control.topic_metadata(TOPIC))["segments"].values()
    found = [(s["hashRange"]["start"], s["segmentId"]) for s in segments if s["state"] == "ACTIVE"]
    return [id_ for _, id_ in sorted(found)]


def test_stream_consumers_come_and_go(broker: BrokerProcess, start: Start) -> None:
    """More consumers than segments: M1 expects the surplus one to wait until there is something for it."""
    with AdminClient(broker.http_url) as control:
        control.create_topic(TOPIC, 2)
        # One after the other: M1 forgets an assignment that comes while it still carries out its first one.
        consumers = [start_ready(start) for _ in range(3)]
        blocking, asynchronous = start("blocking", 2 * COUNT), start("async", 2 * COUNT)
        blocking.wait_for("sent", COUNT // 4)
        leaver = next(consumer for consumer in consumers if consumer.of("received"))
        leaver.stop()
        blocking.wait_for("sent", COUNT // 2)
        consumers.append(start_ready(start))
        control.split(TOPIC, 0)
        blocking.wait_for("sent", COUNT)
        crash(broker, control)
        blocking.wait_for("sent", COUNT * 3 // 2)
        control.merge(TOPIC, active(control))
        assert not blocking.of("done"), "the merge came too late to show anything"
        blocking.wait_for("done")
        asynchronous.wait_for("done")

    sent = {event["value"]: event["key"] for role in (blocking, asynchronous) for event in role.of("sent")}
    assert not asynchronous.of("failed")
    assert len(sent) == 4 * COUNT
    deadline = time.monotonic() + 30
    while missing := sent.keys() - {event["value"] for c in consumers for event in c.of("received")}:
        assert time.monotonic() < deadline, f"{len(missing)} messages did not arrive"
        time.sleep(0.1)
    for consumer in consumers:
        if consumer is not leaver:
            consumer.stop()
    received = sorted((e for c in consumers for e in c.of("received")), key=lambda e: e["at_ms"])
    check_received("streams", received, sent)
    check_key_order("streams", received)
    assert consumers[-1].of("received"), "the newcomer received no message"


def test_stream_consumers_that_start_at_once_find_their_shares(broker: BrokerProcess, start: Start) -> None:
    """M1 drops an assignment that arrives while it carries out its first one; the leader sends it again."""
    with AdminClient(broker.http_url) as control:
        control.create_topic(TOPIC, 4)
        consumers = [start("stream", "s") for _ in range(4)]
        for consumer in consumers:
            consumer.wait_for("ready")
        blocking = start("blocking", COUNT)
        blocking.wait_for("done")
        sent = {event["value"]: event["key"] for event in blocking.of("sent")}
        deadline = time.monotonic() + 60
        while missing := sent.keys() - {event["value"] for c in consumers for event in c.of("received")}:
            assert time.monotonic() < deadline, f"{len(missing)} messages did not arrive"
            time.sleep(0.1)
    for consumer in consumers:
        consumer.stop()
        assert consumer.of("received"), f"{consumer.name} received no message"
    received = sorted((e for c in consumers for e in c.of("received")), key=lambda e: e["at_ms"])
    check_received("streams", received, sent)
    check_key_order("streams", received)
