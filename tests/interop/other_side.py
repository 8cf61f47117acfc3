"""This side of a case: what a program on another client cannot do itself, such as to kill a worker."""

from __future__ import annotations

import os
import signal
import time

from anabranch import AdminClient, Client, Decrypt, Encrypt, PemFiles
from simulation.harness.process import BrokerProcess
from tests.interop.features import RsaKeys

VALUES = [b"value-%d" % number for number in range(30)]
LARGE = b"0123456789abcdef" * (6 << 16)
"""Larger than an entry."""


def fulfil(wish: str, topic: str, broker: BrokerProcess, keys: RsaKeys) -> None:
    """Do what the program of the case on this topic asked for."""
    match wish.split():
        case ["restart"]:
            broker.kill()
            broker.start()
        case ["lose", "worker", number]:
            lose_worker(broker, int(number))
        case ["exchange"]:
            exchange(broker, topic, keys)
        case ["make", "topics"]:
            make_topics(broker, topic)
        case ["make", "one", "more"]:
            with AdminClient(broker.http_url) as admin:
                admin.create_topic(f"topic://{namespace_of(topic)}/later", properties={"colour": "red"})
        case _:
            raise ValueError(f"no such wish: {wish}")


def lose_worker(broker: BrokerProcess, number: int) -> None:
    """Kill one of two workers; return when a new one serves its store. One process is killed as a whole."""
    if broker.settings.get("workers", 1) == 1:
        broker.kill()
        broker.start()
        return
    lost = broker.worker(number)
    os.kill(lost, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while broker.worker(number) == lost:
        assert time.monotonic() < deadline, f"worker {number} does not come back"
        time.sleep(0.02)


def exchange(broker: BrokerProcess, topic: str, keys: RsaKeys) -> None:
    """Read with our client the messages that the program encrypted, and encrypt others for it."""
    with Client(broker.url) as client:
        decryption = Decrypt(PemFiles({"app": keys.private}))
        theirs = client.subscribe_queue(
            f"{topic}-theirs", "s", initial_position="earliest", encryption=decryption
        )
        found = [theirs.receive(timeout=20) for _ in range(31)]
        assert [message.data for message in found] == [*VALUES, LARGE]
        assert {message.key for message in found} == {"k"}
        encryption = Encrypt("app", PemFiles(keys.public))
        ours = f"{topic}-ours"
        batched = client.create_producer(ours, encryption=encryption, compression="zstd")
        batched.send_many(VALUES, keys=["k"] * len(VALUES))
        client.create_producer(ours, encryption=encryption, chunking=True).send(LARGE, key="k")


def namespace_of(topic: str) -> str:
    """The namespace of a case that needs one of its own."""
    return f"public/{topic.rsplit('/', 1)[1]}"


def make_topics(broker: BrokerProcess, topic: str) -> None:
    """Make a namespace with two topics, whose properties differ."""
    with AdminClient(broker.http_url) as admin:
        admin.create_namespace(namespace_of(topic))
        for colour in ("red", "blue"):
            admin.create_topic(f"topic://{namespace_of(topic)}/{colour}", properties={"colour": colour})
