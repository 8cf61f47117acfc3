"""End-to-end encryption between our client and the official one in Python, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch import Client, Decrypt, Encrypt, PemFiles
from simulation.harness.process import BrokerProcess
from tests.interop.features import RsaKeys, make_keys, new_topic, served

PATIENCE_MS = 20_000
VALUES = [b"%d-" % number * 300 for number in range(30)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with served(tmp_path_factory, workers=1) as process:
        yield process


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> RsaKeys:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_official_client_reads_our_batches_and_chunks(
    broker: BrokerProcess, keys: RsaKeys, compression: Any
) -> None:
    topic, large = new_topic("ours"), bytes(range(256)) * 2**15
    reader = pulsar.CryptoKeyReader(str(keys.public), str(keys.private))
    theirs = pulsar.Client(broker.url)
    consumer = theirs.subscribe(topic, "s", crypto_key_reader=reader)
    with Client(broker.url) as client:
        encryption = Encrypt(["app", "audit"], PemFiles(keys.public))
        batched = client.create_producer(topic, encryption=encryption, compression=compression)
        batched.send_many(VALUES, keys=[f"k{number % 3}" for number in range(30)])
        chunked = client.create_producer(topic, encryption=encryption, chunking=True)
        chunked.send(large, key="k", properties={"colour": "red"})
        found = [consumer.receive(PATIENCE_MS) for _ in range(31)]
    assert [message.data() for message in found] == [*VALUES, large]
    assert (found[0].partition_key(), found[30].properties()["colour"]) == ("k0", "red")
    theirs.close()


@pytest.mark.parametrize("kind", ["batches", "singles", "chunks"])
def test_our_client_reads_what_the_official_one_encrypts(
    broker: BrokerProcess, keys: RsaKeys, kind: str
) -> None:
    topic = new_topic("theirs")
    reader = pulsar.CryptoKeyReader(str(keys.public), str(keys.private))
    values = [bytes(range(256)) * 2**15] if kind == "chunks" else VALUES
    theirs = pulsar.Client(broker.url)
    producer = theirs.create_producer(
        topic,
        encryption_key="app",
        crypto_key_reader=reader,
        batching_enabled=kind == "batches",
        batching_max_publish_delay_ms=100,
        chunking_enabled=kind == "chunks",
        compression_type=pulsar.CompressionType.LZ4,
    )
    for value in values:
        producer.send_async(value, lambda result, id_: None, partition_key="k")
    producer.flush()
    theirs.close()
    with Client(broker.url) as client:
        decryption = Decrypt(PemFiles({"app": keys.private}))
        consumer = client.subscribe_queue(topic, "s", initial_position="earliest", encryption=decryption)
        found = [consumer.receive(timeout=20) for _ in values]
        assert [message.data for message in found] == values
        assert {message.key for message in found} == {"k"}


def test_each_side_refuses_what_it_has_no_key_for(
    broker: BrokerProcess, keys: RsaKeys, tmp_path: Path
) -> None:
    topic, other = new_topic("strange"), make_keys(tmp_path)
    discard = pulsar.ConsumerCryptoFailureAction.DISCARD
    theirs = pulsar.Client(broker.url)
    wrong = pulsar.CryptoKeyReader(str(other.public), str(other.private))
    consumer = theirs.subscribe(topic, "s", crypto_key_reader=wrong, crypto_failure_action=discard)
    with Client(broker.url) as client:
        client.create_producer(topic, encryption=Encrypt("app", PemFiles(keys.public))).send(b"for others")
        client.create_producer(topic, encryption=Encrypt("app", PemFiles(other.public))).send(b"for them")
        assert consumer.receive(PATIENCE_MS).data() == b"for them"
    theirs.close()
