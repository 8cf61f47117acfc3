"""End-to-end encryption against a broker on a virtual clock: what readers see, and what the broker keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from anabranch import (
    AsyncClient,
    Backoff,
    Checkpoint,
    DeadLetter,
    Decrypt,
    Encrypt,
    EncryptionKey,
    PemFiles,
)
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.encryption import DecryptionError, EncryptionKeyError, read_key
from anabranch.errors import InvalidConfigurationError
from anabranch.protocol.encryption import EncryptionRequiredError
from anabranch.protocol.entries import EncryptedEntryError, checked_metadata
from anabranch.protocol.outer import read_outer
from tests.harness.admin import Admin
from tests.harness.cluster import TOPIC, Brokers, read_all
from tests.harness.keys import key_pair, private_keys, public_keys

LIMIT = 2**16
NAMESPACE = "/admin/v2/namespaces/public/default"
ENCRYPT = Encrypt("app", public_keys("app"))
DECRYPT = Decrypt(private_keys("app"))

pytestmark = pytest.mark.brokers(max_message_bytes=LIMIT)


async def take(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = await consumer.receive_many(count - len(found), timeout=5)
        assert messages, f"only {len(found)} of {count} messages came"
        found += [message.data for message in messages]
        if hasattr(consumer, "acknowledge_cumulative"):
            await consumer.acknowledge_cumulative(messages[-1])
        elif hasattr(consumer, "acknowledge"):
            await consumer.acknowledge(messages)
    return found


async def stored(client: BulkClient, messages: int) -> list[bytes]:
    """The entries of the first segment as the broker keeps them."""
    layout = await client.layout(TOPIC)
    reader = client.read_segment(layout.segment_topic(layout.layout.segments[0]), 0, messages)
    return [entry.data for entry in await read_all(reader)]


async def opened(client: AsyncClient, kind: str, encryption: Decrypt | None = DECRYPT) -> Any:
    if kind == "checkpoint":
        return await client.create_checkpoint_consumer(
            TOPIC, start=Checkpoint.earliest(), encryption=encryption
        )
    if kind == "stream":
        return await client.subscribe_stream(TOPIC, "s", initial_position="earliest", encryption=encryption)
    return await client.subscribe_queue(
        TOPIC, "s", initial_position="earliest", encryption=encryption, redelivery=Backoff(0.1, 0.1)
    )


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
async def test_messages_come_back_as_they_were_sent(
    brokers: Brokers, kind: str, batching: bool, compression: Any
) -> None:
    values = [b"%d-" % n * 200 for n in range(50)]
    async with brokers.client() as client:
        producer = await client.create_producer(
            TOPIC, encryption=ENCRYPT, batching=batching, compression=compression
        )
        await producer.send_many(values, keys=["k"] * 50)
        consumer = await opened(client, kind)
        assert await take(consumer, 50) == values


async def test_the_broker_keeps_ciphertext_behind_readable_metadata(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, encryption=ENCRYPT)
        await producer.send(b"one tea", key="alice", properties={"note": "hidden in a batch"})
        (entry,) = await stored(client, 1)
        assert b"one tea" not in entry
        assert b"hidden" not in entry
        metadata, _ = checked_metadata(entry)
        assert [key.key for key in metadata.encryption_keys] == ["app"]
        assert len(metadata.encryption_param) == 12
        assert metadata.num_messages_in_batch == 1
        assert read_outer(entry).bucket_hash == metadata.entry_hash_min, "the bucket stays visible"
        plain = await client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest())
        message = await plain.receive(timeout=5)
        with pytest.raises(EncryptedEntryError, match="Decrypt"):
            _ = message.data


async def test_each_recipient_reads_with_its_own_key(brokers: Brokers) -> None:
    async with brokers.client() as client:
        both = Encrypt(["app", "audit"], public_keys("app", "audit"))
        producer = await client.create_producer(TOPIC, encryption=both)
        await producer.send(b"one tea")
        for name in ("app", "audit"):
            keys = private_keys(name)
            consumer = await opened(client, "checkpoint", Decrypt(keys))
            assert await take(consumer, 1) == [b"one tea"]


async def test_encrypted_and_readable_messages_share_a_topic(brokers: Brokers) -> None:
    async with brokers.client() as client:
        secret = await client.create_producer(TOPIC, encryption=ENCRYPT)
        plain = await client.create_producer(TOPIC)
        for number in range(4):
            await (secret if number % 2 else plain).send(b"%d" % number, key="k")
        assert await take(await opened(client, "stream"), 4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a_message_in_chunks_is_encrypted_chunk_by_chunk(brokers: Brokers, kind: str) -> None:
    value = b"%06d" % 7 * LIMIT
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, encryption=ENCRYPT, chunking=True)
        await producer.send(value, key="k")
        await producer.send(b"small", key="k")
        assert all(len(entry) <= LIMIT for entry in await stored(client, 2))
        consumer = await opened(client, kind)
        assert await take(consumer, 2) == [value, b"small"]
        await consumer.close()
        again = await opened(client, kind)
        assert await again.receive_many(1, timeout=1) == [], "all chunks are acknowledged"


async def test_messages_of_a_sealed_segment_are_encrypted_for_its_successors(brokers: Brokers) -> None:
    values = [b"%d" % n for n in range(400)]
    async with brokers.client() as client:
        consumer = await opened(client, "stream")
        producer = await client.create_producer(TOPIC, encryption=ENCRYPT)
        sending = asyncio.ensure_future(
            producer.send_many(values, keys=[b"%d" % (n % 7) for n in range(400)])
        )
        await asyncio.sleep(0)
        await (await brokers.controller()).split(0)
        brokers.reset_links()
        await sending
        assert sorted(await take(consumer, 400)) == sorted(values)


async def test_a_missing_key_fails_each_receive_until_it_is_there(brokers: Brokers) -> None:
    keys = private_keys()
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, encryption=ENCRYPT)
        await producer.send_many([b"a", b"b"], keys=["k", "k"])
        consumer = await opened(client, "stream", Decrypt(keys))
        for _ in range(2):
            with pytest.raises(DecryptionError, match="has no key app") as caught:
                await consumer.receive(timeout=5)
        assert caught.value.topic == TOPIC
        keys.names.append("app")
        assert await take(consumer, 2) == [b"a", b"b"]
        assert len(keys.asked) == 3, "a data key that is known is not asked for again"


async def test_entries_that_cannot_be_decrypted_are_discarded(brokers: Brokers) -> None:
    async with brokers.client() as client:
        other = await client.create_producer(TOPIC, encryption=Encrypt("other", public_keys("other")))
        await other.send_many([b"not mine"] * 3, keys=["k"] * 3)
        mine = await client.create_producer(TOPIC, encryption=ENCRYPT)
        await mine.send(b"mine", key="k")
        for kind in ("stream", "queue"):
            consumer = await opened(client, kind, Decrypt(private_keys("app"), on_failure="discard"))
            assert await take(consumer, 1) == [b"mine"]
            assert consumer.bad_entry_count == 1
            await consumer.unsubscribe()


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_encrypted_messages_are_handed_out_closed(brokers: Brokers, kind: str) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, encryption=ENCRYPT, compression="zstd")
        await producer.send_many([b"a" * 1000] * 3, keys=["k"] * 3)
        consumer = await opened(client, kind, Decrypt(on_failure="consume"))
        message = await consumer.receive(timeout=5)
        context = message.encryption
        assert (context.batch_size, context.compression, list(context.keys)) == (3, "ZSTD", ["app"])
        assert (message.key, b"aaaa" in message.data) == ("k", False)
        await (consumer.acknowledge(message) if kind == "queue" else consumer.acknowledge_cumulative(message))
        assert await consumer.receive_many(5, timeout=1) == [], "the batch is one message"
        await consumer.close()
        again = await opened(client, kind, DECRYPT)
        assert await again.receive_many(5, timeout=1) == [], "the whole batch is acknowledged"


async def test_a_producer_without_its_key_does_not_open(brokers: Brokers) -> None:
    async with brokers.client() as client:
        with pytest.raises(EncryptionKeyError, match="has no key app"):
            await client.create_producer(TOPIC, encryption=Encrypt("app", public_keys()))


async def test_a_producer_may_send_readable_messages_until_it_has_its_key(brokers: Brokers) -> None:
    keys = public_keys()
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, encryption=Encrypt("app", keys, on_failure="send"))
        await producer.send(b"readable")
        keys.names.append("app")
        await asyncio.sleep(61)
        await producer.send(b"starts the look")
        await asyncio.sleep(1)
        await producer.send(b"secret")
        kept = [bool(checked_metadata(entry)[0].encryption_keys) for entry in await stored(client, 3)]
        assert kept == [False, False, True], "the second message only finds that it is time to ask"
        assert await take(await opened(client, "stream"), 3) == [b"readable", b"starts the look", b"secret"]


async def require_encryption(brokers: Brokers, required: bool) -> None:
    answer = await Admin(brokers).ask("POST", f"{NAMESPACE}/encryptionRequired", required)
    assert answer.status == 204


@pytest.mark.parametrize("topic", [TOPIC, "persistent://public/default/classic"])
@pytest.mark.parametrize(
    "kept", [{}, {"name": "p"}, {"access_mode": "exclusive"}], ids=lambda kept: next(iter(kept), "plain")
)
async def test_a_producer_without_a_key_is_refused_at_once(
    brokers: Brokers, topic: str, kept: dict[str, Any]
) -> None:
    await require_encryption(brokers, True)
    async with brokers.client(operation_timeout=20) as client, asyncio.timeout(1):
        with pytest.raises(EncryptionRequiredError, match="give the producer an encryption key"):
            await client.create_producer(topic, **kept)
        encrypting = await client.create_producer(topic, encryption=ENCRYPT, **kept)
        await encrypting.send(b"secret", key="k")


@pytest.mark.parametrize("topic", [TOPIC, "persistent://public/default/classic"])
async def test_a_policy_that_demands_encryption_ends_open_producers_until_it_is_gone(
    brokers: Brokers, topic: str
) -> None:
    async with brokers.client(operation_timeout=20) as client:
        producer = await client.create_producer(topic, name="p")
        await producer.send(b"readable", key="k")
        await require_encryption(brokers, True)
        async with asyncio.timeout(1):
            with pytest.raises(EncryptionRequiredError):
                await producer.send(b"refused", key="k")
        await asyncio.sleep(5)
        async with asyncio.timeout(1):
            with pytest.raises(EncryptionRequiredError):
                await (await producer.enqueue(b"refused", key="k"))
        await require_encryption(brokers, False)
        async with asyncio.timeout(1):
            await producer.send(b"readable", key="k")


async def test_the_data_key_is_replaced_in_time(brokers: Brokers) -> None:
    keys = public_keys("app")
    async with brokers.client() as client:
        encryption = Encrypt("app", keys, rotate_after=timedelta(minutes=1))
        producer = await client.create_producer(TOPIC, encryption=encryption)
        for _ in range(3):
            await producer.send(b"before")
        await asyncio.sleep(61)
        await producer.send(b"due")
        keys.names.clear()
        await producer.send(b"after")
        await asyncio.sleep(61)
        for _ in range(2):
            await producer.send(b"kept")
        wrapped = [checked_metadata(entry)[0].encryption_keys[0].value for entry in await stored(client, 7)]
        assert len(set(wrapped)) == 2
        assert wrapped[0] == wrapped[2] == wrapped[3] != wrapped[4] == wrapped[6]
        assert (
            await take(await opened(client, "stream"), 7)
            == [b"before"] * 3 + [b"due", b"after"] + [b"kept"] * 2
        )


async def test_the_version_of_a_key_reaches_the_reader(brokers: Brokers) -> None:
    async def read(name: str, metadata: Mapping[str, str]) -> EncryptionKey:
        return EncryptionKey(key_pair(name).public, {"version": "2"})

    keys = private_keys("app")
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, encryption=Encrypt("app", read))
        await producer.send(b"one tea")
        assert await take(await opened(client, "stream", Decrypt(keys)), 1) == [b"one tea"]
    assert keys.asked == [("app", {"version": "2"})]


async def test_dead_letters_are_encrypted_too(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer(TOPIC, encryption=ENCRYPT)
        await producer.send(b"one tea", key="k")
        letters = DeadLetter(0, topic="refused", encryption=ENCRYPT)
        consumer = await client.subscribe_queue(
            TOPIC,
            "s",
            initial_position="earliest",
            dead_letter=letters,
            redelivery=Backoff(0.1, 0.1),
            encryption=DECRYPT,
        )
        await consumer.negative_acknowledge(await consumer.receive(timeout=5))
        refused = await client.create_checkpoint_consumer(
            "refused", start=Checkpoint.earliest(), encryption=DECRYPT
        )
        waiting = asyncio.ensure_future(consumer.receive())
        message = await refused.receive(timeout=30)
        waiting.cancel()
        assert (message.data, message.properties["REAL_SUBSCRIPTION"]) == (b"one tea", "s")
        blind = await client.create_checkpoint_consumer("refused", start=Checkpoint.earliest())
        with pytest.raises(EncryptedEntryError):
            _ = (await blind.receive(timeout=5)).data


async def test_readable_dead_letters_of_encrypted_messages_are_refused(brokers: Brokers) -> None:
    async with brokers.client() as client:
        with pytest.raises(InvalidConfigurationError, match="DeadLetter"):
            await client.subscribe_queue(TOPIC, "s", dead_letter=DeadLetter(3), encryption=DECRYPT)
        with pytest.raises(InvalidConfigurationError, match="must be a Decrypt"):
            await client.subscribe_queue(TOPIC, "s", encryption=ENCRYPT)  # type: ignore[arg-type]
        with pytest.raises(InvalidConfigurationError, match="must be an Encrypt"):
            await client.create_producer(TOPIC, encryption=DECRYPT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pem", "reason"),
    [
        (b"no key", "not a public key in PEM form"),
        (key_pair("app").private, "not a public key in PEM form"),
        (None, "has no key app"),
        ("text", "not bytes"),
    ],
)
async def test_an_unusable_key_is_named(brokers: Brokers, pem: Any, reason: str) -> None:
    async def read(name: str, metadata: Mapping[str, str]) -> Any:
        return pem

    async with brokers.client() as client:
        with pytest.raises(EncryptionKeyError, match=reason):
            await client.create_producer(TOPIC, encryption=Encrypt("app", read))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory", "app.pem"), "No such file or directory: app.pem"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (ValueError("a secret"), "ValueError"),
    ],
)
async def test_a_file_that_is_not_read_is_named_and_texts_of_other_errors_are_not_shown(
    error: Exception, reason: str
) -> None:
    async def read(name: str, metadata: Mapping[str, str]) -> bytes:
        raise error

    with pytest.raises(EncryptionKeyError) as raised:
        await read_key(read, "app", {}, 5)
    assert str(raised.value) == f"the key app was not read: {reason}"


async def test_a_key_reader_that_never_answers_ends_with_the_operation(brokers: Brokers) -> None:
    async def read(name: str, metadata: Mapping[str, str]) -> bytes:
        await asyncio.sleep(1e6)
        return b""

    async with brokers.client(operation_timeout=5.0) as client:
        with pytest.raises(EncryptionKeyError, match="within 5 s"):
            await client.create_producer(TOPIC, encryption=Encrypt("app", read))


def test_policies_are_checked() -> None:
    with pytest.raises(InvalidConfigurationError, match="works without keys"):
        Decrypt()
    with pytest.raises(InvalidConfigurationError, match="fail, discard, consume"):
        Decrypt(PemFiles("key.pem"), on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigurationError, match="at least one key"):
        Encrypt([], PemFiles("key.pem"))
    with pytest.raises(InvalidConfigurationError, match="positive"):
        Encrypt("app", PemFiles("key.pem"), rotate_after=0)
