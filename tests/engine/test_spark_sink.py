"""Exactly-once writes of Spark to topics of a Pulsar cluster, through crashes, drivers and layout changes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

import anabranch
from anabranch.admin.client import AdminClient
from anabranch.errors import AnabranchError, TopicNotFoundError, UnsupportedFeatureError
from anabranch.failpoints import FailpointReachedError
from anabranch.spark.service import close_sessions
from simulation.harness.pulsar.cluster import PulsarCluster
from simulation.harness.pulsar.control import ControlServer, control_servers
from simulation.harness.pulsar.server_process import ServerProcess
from tests.harness.pulsar import EngineAddresses
from tests.harness.spark_rows import KEYS, OtherDriver, Row, Writing, check_rows, read_rows

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]


CHANGE_S = 60.0
"""How long a change of a layout may be refused after a kill."""
SILENCE_S = 60.0
"""A consumer that gets nothing for so long, although messages are missing, has failed."""
QUIET_S = 3.0
"""A message that was stored twice is received again within this time."""


@pytest.fixture(scope="module")
def control(
    small_engine: EngineAddresses, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlServer]:
    scratch = tmp_path_factory.mktemp("sink")
    server = ControlServer(
        scratch, 11, http_url=small_engine.http_url, zookeeper_url=small_engine.zookeeper_url
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


class SinkTarget:
    """A topic of the cluster with two segments, and a query that writes to it."""

    def __init__(self, servers: Sequence[ControlServer], name: str) -> None:
        self.name = name
        self._servers = servers
        self.writing = Writing(self, sink_id=name, topic=name)
        with self._admin() as admin:
            admin.create_topic(name, 2)
            # Pulsar fails to add a subscription to a topic that was sealed empty and loaded again.
            admin.create_subscription(name, "all")

    @property
    def url(self) -> str:
        return "pulsar://" + ",".join(f"127.0.0.1:{server.port}" for server in self._servers)

    def _admin(self) -> AdminClient:
        return AdminClient(next(server.http_url for server in self._servers if server.running))

    def merge(self) -> None:
        """Merge all active segments."""
        self._change(lambda admin, ids: admin.merge(self.name, ids))

    def split(self, parts: int = 2) -> None:
        """Split the first active segment."""
        self._change(lambda admin, ids: admin.split(self.name, ids[0], parts=parts))

    def _change(self, change: Callable[[AdminClient, list[int]], object]) -> None:
        """Change the layout; processes that were killed may still be missing."""
        until_s = time.monotonic() + CHANGE_S
        while True:
            try:
                with self._admin() as admin:
                    change(admin, self._active(admin))
                return
            except AnabranchError as error:
                if not error.retryable or time.monotonic() > until_s:
                    raise
                time.sleep(0.5)

    def _active(self, admin: AdminClient) -> list[int]:
        """The active segments, by their ranges."""
        segments = admin.topic_metadata(self.name).segments.values()
        found = [one for one in segments if one.state == "ACTIVE"]
        return [one.segment_id for one in sorted(found, key=lambda one: one.hash_range.start)]

    def rows(self) -> list[Row]:
        return read_rows(self, subscribe=self.name)

    def received(self, count: int) -> dict[str, list[int]]:
        """The numbers of each key, as a consumer receives them; there should be `count`."""
        found: dict[str, list[int]] = defaultdict(list)
        with anabranch.Client(self.url) as client:
            consumer = client.subscribe_stream(self.name, "all", initial_position="earliest")
            while messages := consumer.receive_many(1000, timeout=SILENCE_S if count > 0 else QUIET_S):
                count -= len(messages)
                for message in messages:
                    found[str(message.key)].append(int(message.data))
                consumer.acknowledge_cumulative(messages[-1])
        return found

    def segment_topics(self) -> list[str]:
        """The topics of Pulsar that hold the active segments."""
        with self._admin() as admin:
            segments = admin.topic_metadata(self.name).segments.values()
        return [
            f"public/default/{self.name}.segment-{one.hash_range.start:04x}-{one.hash_range.end:04x}-{one.segment_id}"
            for one in segments
            if one.state == "ACTIVE"
        ]


def numbers_of_keys(count: int) -> dict[str, list[int]]:
    """The numbers of each key below a count, in order."""
    return {f"key-{key}": list(range(key, count, KEYS)) for key in range(KEYS)}


def unload_topics(http_url: str, topics: Sequence[str]) -> None:
    """Let Pulsar disconnect the clients of topics, and load the topics again on their next use."""
    with AdminClient(http_url) as pulsar:
        for topic in topics:
            pulsar.call("PUT", f"/admin/v2/persistent/{topic}/unload")


@pytest.fixture
def target(control: ControlServer) -> Iterator[SinkTarget]:
    yield SinkTarget([control], f"copy-{uuid4().hex}")
    close_sessions()


def test_only_the_attempts_of_the_first_commit_are_published(target: SinkTarget) -> None:
    writing = target.writing
    writing.stage(0, range(500), fails=True)
    speculative = writing.stage(0, range(500))
    chosen = writing.stage(0, range(500))
    writing.commit(chosen)
    writing.commit(chosen)
    writing.commit(speculative)
    assert writing.stage(0, range(500)).staged is None
    writing.commit(writing.stage(1, range(500, 900)), writing.stage(1, range(900, 1000)))
    check_rows(target.rows(), 1000)


@pytest.mark.parametrize("step", ["pinned", "publishing", "published", "done"])
def test_a_commit_that_dies_at_any_step_is_completed_by_the_next(
    target: SinkTarget, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = target.writing
    writing.commit(writing.stage(0, range(300)))
    staged = writing.stage(1, range(300, 1000))
    monkeypatch.setenv("ANABRANCH_FAILPOINTS", f"sink.{step}=raise")
    with pytest.raises(FailpointReachedError):
        writing.commit(staged)
    target.merge()
    if step != "done":
        monkeypatch.setenv("ANABRANCH_FAILPOINTS", "sink.publishing=raise")
        with pytest.raises(FailpointReachedError):
            writing.commit(writing.stage(1, range(300, 1000)))
    monkeypatch.delenv("ANABRANCH_FAILPOINTS")
    target.split(3)
    # Spark replays the batch, with other tasks.
    writing.commit(writing.stage(1, range(300, 1000)))
    writing.commit(writing.stage(2, range(1000, 1200)))
    check_rows(target.rows(), 1200)


@pytest.mark.parametrize("step", ["publishing", "published"])
def test_the_next_driver_continues_in_the_same_segments(
    target: SinkTarget, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = target.writing.stage(0, range(1000))
    monkeypatch.setenv("ANABRANCH_FAILPOINTS", f"sink.{step}=raise")
    with pytest.raises(FailpointReachedError):
        target.writing.commit(staged)
    monkeypatch.delenv("ANABRANCH_FAILPOINTS")
    target.writing.commit(staged)
    check_rows(target.rows(), 1000)


@pytest.mark.parametrize("step", ["pinned", "publishing", "published"])
def test_a_driver_that_sleeps_and_wakes_up_again_does_no_harm(
    target: SinkTarget, step: str, tmp_path: Path
) -> None:
    writing = target.writing
    writing.commit(writing.stage(0, range(300)))
    sleeping = OtherDriver(target, writing.stage(1, range(300, 1000)), step, tmp_path)
    target.merge()
    writing.commit(writing.stage(1, range(300, 1000)))
    writing.commit(writing.stage(2, range(1000, 1200)))
    target.split()
    sleeping.resume()
    writing.commit(writing.stage(3, range(1200, 1300)))
    check_rows(target.rows(), 1300)


def test_rows_without_a_key_are_written_once(target: SinkTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = target.writing
    staged = writing.stage(0, range(1000), keyless=True)
    monkeypatch.setenv("ANABRANCH_FAILPOINTS", "sink.publishing=raise")
    with pytest.raises(FailpointReachedError):
        writing.commit(staged)
    monkeypatch.delenv("ANABRANCH_FAILPOINTS")
    target.merge()
    writing.commit(staged)
    assert sorted(value for _, value, _, _ in target.rows()) == list(range(1000))


def test_segments_that_were_sealed_without_messages_are_empty(
    small_engine: EngineAddresses, target: SinkTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = target.writing.stage(0, range(300))
    monkeypatch.setenv("ANABRANCH_FAILPOINTS", "sink.pinned=raise")
    with pytest.raises(FailpointReachedError):
        target.writing.commit(staged)
    monkeypatch.delenv("ANABRANCH_FAILPOINTS")
    sealed = target.segment_topics()
    target.merge()
    # A topic of Pulsar without a ledger refuses a reader at its beginning, once it is loaded again.
    unload_topics(small_engine.http_url, sealed)
    target.writing.commit(staged)
    check_rows(target.rows(), 300)


def test_segments_that_were_loaded_and_sealed_without_more_messages_are_read(
    small_engine: EngineAddresses, target: SinkTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = target.writing.stage(0, range(1000))
    monkeypatch.setenv("ANABRANCH_FAILPOINTS", "sink.published=raise")
    with pytest.raises(FailpointReachedError):
        target.writing.commit(staged)
    monkeypatch.delenv("ANABRANCH_FAILPOINTS")
    # The topic gets an empty ledger, and Pulsar names no last entry once it is terminated.
    unload_topics(small_engine.http_url, target.segment_topics())
    target.merge()
    target.writing.commit(staged)
    assert target.received(1000) == numbers_of_keys(1000)


def test_a_classic_topic_of_pulsar_is_refused(control: ControlServer, target: SinkTarget) -> None:
    with AdminClient(control.http_url) as admin:
        # The control process redirects calls about classic topics to the cluster.
        admin.call("PUT", f"/admin/v2/persistent/public/default/{target.name}-classic")
    writing = Writing(
        control, sink_id=target.name, topic=f"persistent://public/default/{target.name}-classic"
    )
    with pytest.raises(UnsupportedFeatureError, match="classic topic of Apache Pulsar"):
        writing.stage(0, range(10))


def test_batches_follow_each_other_through_splits_and_merges(target: SinkTarget) -> None:
    writing = target.writing
    for batch in range(4):
        writing.commit(writing.stage(batch, range(batch * 100, batch * 100 + 100)))
        if batch % 2:
            target.merge()
        else:
            target.split()
    check_rows(target.rows(), 400)


def test_a_sink_whose_logs_may_not_be_created_says_what_to_create(
    small_engine: EngineAddresses, control: ControlServer, target: SinkTarget
) -> None:
    namespace = f"/admin/v2/namespaces/public/{target.name}"
    with AdminClient(small_engine.http_url) as pulsar, AdminClient(control.http_url) as admin:
        for one in (pulsar, admin):
            one.call("PUT", namespace)
        admin.call("POST", f"{namespace}/autoTopicCreation", body={"allowAutoTopicCreation": False})
        writing = Writing(target, topic=target.name)
        writing.namespace = f"public/{target.name}"
        with pytest.raises(TopicNotFoundError, match="pulsar-admin topics create-subscription -s sink"):
            writing.stage(0, range(10))
        for kind in ("rows", "records"):
            log = f"/admin/v2/persistent/public/{target.name}/__sink-copy-{kind}"
            pulsar.call("PUT", log)
            if kind == "rows":
                # A log without its subscription would lose messages.
                with pytest.raises(TopicNotFoundError, match="lacks the subscription sink"):
                    writing.stage(0, range(10))
            earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
            pulsar.call("PUT", f"{log}/subscription/sink", body=earliest)
    writing.commit(writing.stage(0, range(10)))
    check_rows(target.rows(), 10)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_rows_are_written_once_while_processes_die(cluster: PulsarCluster, tmp_path: Path) -> None:
    controls = control_servers(tmp_path, cluster.http_url, cluster.zookeeper_url)
    for server in controls:
        cluster.add(server)
    target = SinkTarget(controls, "copy")

    def killed(server: ServerProcess) -> Callable[[], None]:
        def fault() -> None:
            server.kill()
            server.start()

        return fault

    def unload() -> None:
        unload_topics(cluster.brokers[0].http_url, target.segment_topics())

    faults = [killed(controls[0]), killed(cluster.brokers[0]), unload]
    faults += [killed(cluster.brokers[1]), killed(controls[1])]
    writing, count = target.writing, 0
    for batch, fault in enumerate(faults):
        rows = range(count, count + 500)
        staged = writing.stage(batch, rows)
        driver = OtherDriver(target, staged, "publishing", tmp_path)
        fault()
        if batch % 2:
            target.merge()
            driver.kill()
        else:
            target.split(3)
            driver.resume()
        writing.commit(writing.stage(batch, rows))
        count = rows.stop
    assert target.received(count) == numbers_of_keys(count)
    close_sessions()
