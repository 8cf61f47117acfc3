"""The secret between brokers: proven by both ends, never sent, and rotated under open links."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest

from anabranch.broker.cluster.cluster_secret import (
    FORMER_PATH,
    PEER_AUTHENTICATION,
    ClusterSecret,
    DialingProof,
    PeerMachine,
)
from anabranch.errors import AuthenticationError, InvalidConfigurationError, RemoteProtocolError
from anabranch.metadata.memory import MemoryStore
from anabranch.protocol.commands import encode
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.security.peer_secrets import PeerSecrets
from anabranch.testing.seeded_secrets import SeededSecrets
from anabranch.transport.dialing import dial
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from tests.harness.admin import ORDERS, Admin
from tests.harness.cluster import PORT, Brokers, host_of
from tests.harness.wire import WireClient

OLD, NEW = b"o" * 32, b"n" * 32


class CountedLink:
    """A connection that counts how often it is closed."""

    closed = 0

    def hang_up(self) -> None:
        self.closed += 1


class SecretEnd:
    """One broker of a cluster."""

    def __init__(self, loop: SimLoop, secrets: PeerSecrets, seed: int = 1) -> None:
        self.source = SeededSecrets(random.Random(seed))
        self.source.secrets = secrets
        self.clock = SimClock(loop)
        self.secret = ClusterSecret(self.source, self.clock)

    async def start(self) -> ClusterSecret:
        await self.secret.load(MemoryStore())
        return self.secret


def shake(dialing: ClusterSecret, accepting: ClusterSecret) -> bool:
    """Whether the handshake of two brokers succeeds."""
    dials = dialing.dial()
    accepts = accepting.accept(dials.hello)
    return accepts is not None and accepts.is_proven_by(dials.answer(accepts.challenge))


async def test_brokers_of_one_cluster_recognise_each_other(loop: SimLoop) -> None:
    one = await SecretEnd(loop, PeerSecrets(OLD)).start()
    two = await SecretEnd(loop, PeerSecrets(OLD), seed=2).start()
    stranger = await SecretEnd(loop, PeerSecrets(NEW)).start()
    assert shake(one, two)
    assert not shake(stranger, one)
    assert not shake(one, stranger)


async def test_neither_secret_nor_a_proof_can_be_used_again(loop: SimLoop) -> None:
    one = await SecretEnd(loop, PeerSecrets(OLD)).start()
    two = await SecretEnd(loop, PeerSecrets(OLD), seed=2).start()
    dials = one.dial()
    accepts = two.accept(dials.hello)
    assert accepts is not None
    answer = dials.answer(accepts.challenge)
    for said in (dials.hello, accepts.challenge, answer):
        assert OLD not in said
    again = two.accept(dials.hello)
    assert again is not None
    assert not again.is_proven_by(answer)
    # The proof of the accepting broker does not prove a dialing broker, nor the other way round.
    assert not again.is_proven_by(again.challenge[32:])


async def test_a_broker_answers_no_challenge_of_an_impostor(loop: SimLoop) -> None:
    one = await SecretEnd(loop, PeerSecrets(OLD)).start()
    for challenge in (b"", bytes(32), bytes(64), one.dial().hello):
        with pytest.raises(AuthenticationError):
            one.dial().answer(challenge)


@pytest.mark.parametrize("hello", [b"", OLD, bytes(47), bytes(48), bytes(49)])
async def test_a_hello_without_a_known_key_is_refused(loop: SimLoop, hello: bytes) -> None:
    assert (await SecretEnd(loop, PeerSecrets(OLD)).start()).accept(hello) is None


async def test_no_broker_is_accepted_before_the_secret_is_loaded(loop: SimLoop) -> None:
    end = SecretEnd(loop, PeerSecrets(OLD))
    hello = (await SecretEnd(loop, PeerSecrets(OLD)).start()).dial().hello
    assert end.secret.accept(hello) is None


async def test_both_secrets_are_accepted_during_a_rotation_and_then_one(loop: SimLoop) -> None:
    end = SecretEnd(loop, PeerSecrets(OLD))
    accepting = await end.start()
    late = await SecretEnd(loop, PeerSecrets(OLD), seed=2).start()
    until_s = end.clock.wall_ms() / 1000 + 10
    end.source.secrets = PeerSecrets(NEW, OLD, until_s)
    fresh = await SecretEnd(loop, end.source.secrets, seed=3).start()
    assert shake(fresh, accepting)
    assert shake(late, accepting)
    await asyncio.sleep(10.5)
    assert shake(fresh, accepting)
    assert not shake(late, accepting)


async def test_links_proven_with_an_ended_secret_are_closed(loop: SimLoop) -> None:
    end = SecretEnd(loop, PeerSecrets(OLD))
    accepting = await end.start()
    old, new = CountedLink(), CountedLink()
    hello = accepting.dial().hello
    proof = accepting.accept(hello)
    assert proof is not None
    accepting.note_link(old, proof)
    end.source.secrets = PeerSecrets(NEW, OLD, end.clock.wall_ms() / 1000 + 10)
    proof = accepting.accept(accepting.dial().hello)
    assert proof is not None
    accepting.note_link(new, proof)
    accepting.refresh()
    assert (old.closed, new.closed) == (0, 0)
    end.source.secrets = PeerSecrets(NEW)
    accepting.refresh()
    accepting.refresh()
    assert (old.closed, new.closed) == (1, 0)


class BrokenSecrets(SeededSecrets):
    """A source that cannot be read from some moment on."""

    broken = False

    def load(self) -> PeerSecrets:
        if self.broken:
            raise InvalidConfigurationError("the file is gone")
        return super().load()


async def test_an_unreadable_source_leaves_the_last_secret(
    loop: SimLoop, caplog: pytest.LogCaptureFixture
) -> None:
    source = BrokenSecrets(random.Random(1))
    secret = ClusterSecret(source, SimClock(loop))
    await secret.load(MemoryStore())
    source.broken = True
    assert shake(secret, secret)
    secret.refresh()
    assert len([record for record in caplog.records if "the last one stays in use" in record.message]) == 1


async def test_the_record_of_earlier_versions_is_removed(loop: SimLoop) -> None:
    store = MemoryStore()
    await store.put(FORMER_PATH, OLD)
    end = SecretEnd(loop, PeerSecrets(NEW))
    await end.secret.load(store)
    assert await store.get(FORMER_PATH) is None
    await end.secret.load(store)


def test_a_broker_that_skips_its_proof_is_not_believed() -> None:
    dialing = PeerMachine(DialingProof(OLD, bytes(32)), now=0.0, keep_alive_s=5.0)
    with pytest.raises(AuthenticationError):
        dialing.receive(encode(pb.CommandConnected(server_version="x", protocol_version=21)), 0.0)


async def test_a_second_challenge_is_an_error(loop: SimLoop) -> None:
    accepting = await SecretEnd(loop, PeerSecrets(OLD)).start()
    proof = DialingProof(OLD, bytes(32))
    dialing = PeerMachine(proof, now=0.0, keep_alive_s=5.0)
    accepts = accepting.accept(proof.hello)
    assert accepts is not None
    data = pb.AuthData(auth_method_name=PEER_AUTHENTICATION, auth_data=accepts.challenge)
    frame = encode(pb.CommandAuthChallenge(challenge=data))
    assert dialing.receive(frame, 0.0) == []
    assert len(dialing.take_output()) == 1
    with pytest.raises(RemoteProtocolError):
        dialing.receive(frame, 0.0)


class ForgedProof(DialingProof):
    """The part of a process that has overheard the key id, and does not know the secret."""

    def __init__(self, secret: bytes, forged: bytes) -> None:
        super().__init__(secret, bytes(32))
        self._forged = forged

    def answer(self, challenge: bytes) -> bytes:
        return self._forged


@pytest.mark.parametrize("forged", [b"", bytes(32), bytes(64)])
async def test_a_client_that_knows_the_key_id_alone_is_no_broker(brokers: Brokers, forged: bytes) -> None:
    proof = ForgedProof(brokers.secrets.secrets.current, forged)
    machine = PeerMachine(proof, now=brokers.loop.time(), keep_alive_s=5.0)
    with pytest.raises(AuthenticationError):
        await dial(host_of(0), PORT, lambda: machine, WireClient(), timeout_s=5.0)
    assert not brokers[0].connections
    assert "claims to be a broker" in brokers.audit.reasons[-1]


@pytest.mark.brokers(count=2)
async def test_brokers_go_on_after_a_rotation(brokers: Brokers) -> None:
    admin = Admin(brokers)
    assert (await admin.ask("PUT", ORDERS)).status == 204
    segments = iter(range(10))

    async def split_at_each() -> None:
        # One of the two brokers leads the topic, and the other one calls it.
        for number in (0, 1):
            assert (await admin.ask("POST", f"{ORDERS}/split/{next(segments)}", at=number)).status == 204

    await split_at_each()
    links = [link for broker in brokers.living.values() for link in broker.connections if link.is_peer]
    assert links
    brokers.secrets.secrets = dataclasses.replace(brokers.secrets.secrets, current=NEW)
    for broker in brokers.living.values():
        broker.links.secret.refresh()
    await asyncio.sleep(0.1)
    assert all(link.ended for link in links)
    await split_at_each()


@pytest.mark.brokers(count=2)
async def test_an_impostor_at_the_address_of_a_broker_gets_no_call(brokers: Brokers) -> None:
    impostor = SeededSecrets(brokers.rng)
    mine = brokers.secrets
    brokers.secrets = impostor
    await brokers.stop(1)
    await brokers.start(1)
    brokers.secrets = mine
    admin = Admin(brokers)
    answer = await admin.ask("GET", "/metrics", at=0)
    assert b'anabranch_worker_up{worker="1"} 0.0' in answer.body
