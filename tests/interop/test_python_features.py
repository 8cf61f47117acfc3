"""The usual features of the official `pulsar-client` against our broker."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Record, String, StringSchema

from simulation.harness.process import BrokerProcess
from tests.interop.features import RsaKeys, each_form, make_keys, new_topic, put, served

PATIENCE_MS = 20_000
SHARED, KEYED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
QUIET: dict[str, Any] = {
    "operation_timeout_seconds": 20,
    "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
}


@each_form
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    with served(tmp_path_factory, request.param) as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Any]:
    made = pulsar.Client(broker.url, **QUIET)
    yield made
    made.close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> RsaKeys:
    return make_keys(tmp_path_factory.mktemp("keys"))


def send(client: Any, topic: str, values: list[str], **options: Any) -> list[Any]:
    producer = client.create_producer(topic, **options)
    ids = [producer.send(value.encode()) for value in values]
    producer.close()
    return ids


def take(consumer: Any, count: int, timeout_ms: int = PATIENCE_MS) -> list[str]:
    values = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=timeout_ms)
        values.append(message.data().decode())
        consumer.acknowledge(message)
    return values


def rest_of(reader: Any) -> list[str]:
    """Read as long as the reader says that there is more."""
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(timeout_millis=PATIENCE_MS).data().decode())
    return values


@pytest.mark.parametrize("batched", [False, True])
def test_a_reader_says_truly_whether_more_is_there(client: Any, batched: bool) -> None:
    topic = new_topic("read")
    first = client.create_reader(topic, pulsar.MessageId.earliest)
    late = client.create_reader(topic, pulsar.MessageId.latest)
    assert not first.has_message_available()
    assert not late.has_message_available()
    ids = send(client, topic, ["a", "b", "c"], batching_enabled=batched)
    assert rest_of(first) == rest_of(late) == ["a", "b", "c"]
    assert rest_of(client.create_reader(topic, ids[0])) == ["b", "c"]
    assert rest_of(client.create_reader(topic, ids[1], start_message_id_inclusive=True)) == ["b", "c"]
    end = client.create_reader(topic, pulsar.MessageId.latest)
    assert not end.has_message_available()
    assert rest_of(client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)) == [
        "c"
    ]


def test_readers_and_consumers_seek_to_a_message_and_to_a_time(client: Any) -> None:
    topic = new_topic("seek")
    ids = send(client, topic, ["a", "b"])
    time.sleep(0.1)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.1)
    send(client, topic, ["c", "d"])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert rest_of(reader) == take(consumer, 4) == ["a", "b", "c", "d"]
    for one in (reader, consumer):
        one.seek(middle_ms)
    assert rest_of(reader) == take(consumer, 2) == ["c", "d"]
    for one in (reader, consumer):
        one.seek(pulsar.MessageId.earliest)
    assert rest_of(reader) == take(consumer, 4) == ["a", "b", "c", "d"]
    reader.seek(ids[1])
    assert rest_of(reader) == ["c", "d"]
    reader.seek(pulsar.MessageId.latest)
    assert not reader.has_message_available()


def test_sticky_consumers_get_the_keys_of_their_ranges(client: Any) -> None:
    topic = new_topic("sticky")
    halves = [(0, 32767)], [(32768, 65535)]
    policies = [
        pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=half) for half in halves
    ]
    consumers = [client.subscribe(topic, "s", KEYED, key_shared_policy=policy) for policy in policies]
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(str(number).encode(), partition_key=f"key-{number}")
    got: list[set[str]] = [set(), set()]
    while sum(map(len, got)) < 40:
        for mine, consumer in zip(got, consumers, strict=True):
            with suppress(pulsar.Timeout):
                mine.update(take(consumer, 1, timeout_ms=200))
    assert all(got)
    assert got[0].isdisjoint(got[1])
    assert got[0] | got[1] == {str(number) for number in range(40)}


def test_a_large_message_is_chunked(client: Any) -> None:
    topic = new_topic("chunked")
    consumer = client.subscribe(topic, "s", SHARED)
    producer = client.create_producer(topic, chunking_enabled=True)
    value = bytes(range(256)) * 2**16
    producer.send(value)
    producer.send(b"small")
    assert consumer.receive(timeout_millis=PATIENCE_MS).data() == value
    assert consumer.receive(timeout_millis=PATIENCE_MS).data() == b"small"


def test_encrypted_messages_come_back_plain(client: Any, keys: RsaKeys) -> None:
    topic = new_topic("secret")
    reader = pulsar.CryptoKeyReader(str(keys.public), str(keys.private))
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
    blind = client.subscribe(topic, "blind", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
    send(client, topic, ["a", "b"], encryption_key="app", crypto_key_reader=reader)
    assert take(consumer, 2) == ["a", "b"]
    assert blind.receive(timeout_millis=PATIENCE_MS).data() != b"a"


def order(**fields: Any) -> Any:
    """A record type of that name, whose fields differ from case to case."""
    return type(Record)("Order", (Record,), fields)


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_a_schema_grows_by_a_field_with_a_default(client: Any, schema: Any) -> None:
    topic, before = new_topic("schema"), order(name=String())
    after = order(name=String(), colour=String(default="red", required_default=True))
    consumer = client.subscribe(topic, "s", schema=schema(before))
    client.create_producer(topic, schema=schema(before)).send(before(name="a"))
    client.create_producer(topic, schema=schema(after)).send(after(name="b", colour="blue"))
    assert [consumer.receive(timeout_millis=PATIENCE_MS).value().name for _ in range(2)] == ["a", "b"]
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())


def test_a_dead_letter_comes_after_the_last_retry(client: Any) -> None:
    topic = new_topic("poison")
    dead = client.subscribe(f"{topic}-dead", "look")
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "look")
    options: dict[str, Any] = {"negative_ack_redelivery_delay_ms": 50, "dead_letter_policy": policy}
    consumer = client.subscribe(topic, "s", SHARED, **options)
    send(client, topic, ["bad"])
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(timeout_millis=PATIENCE_MS))
    letter = dead.receive(timeout_millis=PATIENCE_MS)
    assert letter.data() == b"bad"


def test_a_table_view_shows_the_last_value_of_each_key(client: Any) -> None:
    topic = new_topic("table")
    producer = client.create_producer(topic)
    for value in (b"1", b"2"):
        producer.send(value, partition_key="a")
    view = client.create_table_view(topic)
    assert view.get("a") == b"2"
    producer.send(b"3", partition_key="b")
    deadline = time.monotonic() + 20
    while view.get("b") != b"3":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_partitions_and_patterns_are_read_together(broker: BrokerProcess, client: Any) -> None:
    topic = new_topic("parts")
    put(broker, f"persistent/public/default/{topic.rsplit('/', 1)[1]}/partitions", b"3")
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{n}" for n in range(3)]
    consumer = client.subscribe(topic, "s", SHARED)
    by_pattern = client.subscribe(re.compile(f"{topic}.*"), "p")
    values = [str(number) for number in range(30)]
    send(client, topic, values, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    assert sorted(take(consumer, 30)) == sorted(take(by_pattern, 30)) == sorted(values)


def test_a_pattern_finds_topics_that_come_later(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """3.13 ignores its argument for the period and looks once a minute; the layer below does not."""

    below = import_module("_pulsar")
    kind = below.ConsumerConfiguration

    def configuration() -> Any:
        made = kind()
        made.pattern_auto_discovery_period(1)
        return made

    monkeypatch.setattr(below, "ConsumerConfiguration", configuration)
    first = new_topic("found")
    send(client, f"{first}-one", ["early"])
    consumer = client.subscribe(
        re.compile(f"{first}-.*"), "s", SHARED, initial_position=pulsar.InitialPosition.Earliest
    )
    assert take(consumer, 1) == ["early"]
    send(client, f"{first}-two", ["late"])
    assert take(consumer, 1) == ["late"]


def test_a_delayed_message_comes_in_time(client: Any) -> None:
    consumer = client.subscribe(topic := new_topic("delayed"), "s", SHARED)
    producer = client.create_producer(topic)
    began = time.monotonic()
    producer.send(b"later", deliver_after=timedelta(milliseconds=700))
    producer.send(b"now")
    assert take(consumer, 2) == ["now", "later"]
    assert time.monotonic() - began >= 0.65


def test_one_message_of_a_batch_is_acknowledged(client: Any) -> None:
    topic = new_topic("batch")
    options = {"batch_index_ack_enabled": True, "initial_position": pulsar.InitialPosition.Earliest}
    consumer = client.subscribe(topic, "s", SHARED, **options)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for value in (b"a", b"b", b"c"):
        producer.send_async(value, lambda *_: None)
    producer.flush()
    got = [consumer.receive(timeout_millis=PATIENCE_MS) for _ in range(3)]
    consumer.acknowledge(got[1])
    consumer.close()
    again = client.subscribe(topic, "s", SHARED, **options)
    assert sorted(take(again, 2)) == ["a", "c"]


def test_a_client_with_an_http_address_uses_a_new_topic(broker: BrokerProcess) -> None:
    client = pulsar.Client(broker.http_url, **QUIET)
    consumer = client.subscribe(topic := new_topic("http"), "s")
    send(client, topic, ["a"])
    assert take(consumer, 1) == ["a"]
    client.close()


def test_an_unknown_listener_name_is_refused(broker: BrokerProcess) -> None:
    client = pulsar.Client(broker.url, listener_name="inside", **QUIET)
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(new_topic("listener"))
    client.close()


@pytest.mark.parametrize("kind", list(pulsar.ConsumerType.__members__.values()))
def test_a_non_persistent_topic_serves_the_consumers_that_are_there(client: Any, kind: Any) -> None:
    topic = new_topic("live", "non-persistent")
    send(client, topic, ["lost"])
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    ids = send(client, topic, ["a", "b", "c"])
    assert take(consumer, 3) == ["a", "b", "c"]
    assert [(one.ledger_id(), one.entry_id()) for one in ids] == [(0, 0)] * 3
    consumer.close()


def test_the_partitions_of_a_non_persistent_topic(client: Any, broker: BrokerProcess) -> None:
    topic = new_topic("live", "non-persistent")
    put(broker, f"{topic.replace('://', '/')}/partitions", b"3")
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    send(client, topic, [str(number) for number in range(30)])
    assert sorted(map(int, take(consumer, 30))) == list(range(30))
