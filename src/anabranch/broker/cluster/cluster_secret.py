"""The secrets of the cluster as one broker uses them: to prove itself, and to recognise other brokers.

The source is read again for each new link, so a rotation takes effect at once. Links that were proven with a
secret that has ended are closed by `refresh`; their brokers dial again when they next call.
"""

from __future__ import annotations

import hmac
import logging
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from anabranch.clock import Clock
from anabranch.errors import AnabranchError, AuthenticationError, NotFoundError, RemoteProtocolError
from anabranch.metadata.store import MetadataStore
from anabranch.protocol.commands import Command
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.security.peer_secrets import (
    KEY_ID_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    PeerSecrets,
    SecretSource,
    accepting_proof,
    dialing_proof,
    key_id_of,
)

_logger = logging.getLogger(__name__)

PEER_VERSION: Final = "Anabranch-Broker"
PEER_AUTHENTICATION: Final = "anabranch-peer"
"""The authentication method of a broker at another broker."""

FORMER_PATH: Final = "/secrets/brokers"
"""The record in which earlier versions kept the secret."""


class ProvenLink(Protocol):
    """A connection of another broker."""

    def hang_up(self) -> None: ...


class DialingProof:
    """The dialing broker's half of the proof: `hello` goes into CONNECT, `answer` into AUTH_RESPONSE."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        self.hello = key_id_of(secret) + nonce
        self._secret = secret
        self._nonce = nonce

    def answer(self, challenge: bytes) -> bytes:
        """Return the proof. Raises AuthenticationError if the accepting broker did not prove itself."""
        theirs, proof = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not hmac.compare_digest(proof, accepting_proof(self._secret, theirs, self._nonce)):
            raise AuthenticationError("the other end does not know the secret between brokers")
        return dialing_proof(self._secret, self._nonce, theirs)


class AcceptingProof:
    """The accepting broker's half of the proof: `challenge` goes into AUTH_CHALLENGE."""

    def __init__(self, secret: bytes, nonce: bytes, theirs: bytes) -> None:
        self.secret = secret
        self.challenge = nonce + accepting_proof(secret, nonce, theirs)
        self._expected = dialing_proof(secret, theirs, nonce)

    def is_proven_by(self, answer: bytes) -> bool:
        return len(answer) == PROOF_BYTES and hmac.compare_digest(answer, self._expected)


class ClusterSecret:
    """The secret that the brokers of one cluster share, and no client knows."""

    def __init__(self, source: SecretSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._secrets: PeerSecrets | None = None
        self._links: WeakKeyDictionary[ProvenLink, bytes] = WeakKeyDictionary()
        self._failing = False

    async def load(self, store: MetadataStore) -> None:
        """Read the secret, and remove the one that an earlier version kept in the metadata."""
        self._secrets = self._source.load()
        if await store.get(FORMER_PATH) is not None:
            # Another broker may remove it at the same time.
            with suppress(NotFoundError):
                await store.delete(FORMER_PATH)

    def dial(self) -> DialingProof:
        """Start proving this broker to another one."""
        return DialingProof(self._read().current, self._source.nonce())

    def accept(self, hello: bytes) -> AcceptingProof | None:
        """Start checking another broker. Returns None if it does not know a secret of this cluster."""
        if self._secrets is None or len(hello) != KEY_ID_BYTES + NONCE_BYTES:
            return None
        key_id, theirs = hello[:KEY_ID_BYTES], hello[KEY_ID_BYTES:]
        secret = self._read().find(key_id, self._clock.wall_ms() / 1000)
        return AcceptingProof(secret, self._source.nonce(), theirs) if secret is not None else None

    def note_link(self, link: ProvenLink, proof: AcceptingProof) -> None:
        """Remember which secret a broker used to prove itself."""
        self._links[link] = proof.secret

    def refresh(self) -> None:
        """Read the secrets again, and close the links that were proven with a secret that has expired."""
        accepted = self._read().accepted(self._clock.wall_ms() / 1000)
        for link, secret in list(self._links.items()):
            if secret not in accepted:
                del self._links[link]
                link.hang_up()

    def _read(self) -> PeerSecrets:
        """Return the current secrets, or the last known ones if they cannot be read."""
        try:
            self._secrets = self._source.load()
            self._failing = False
        except AnabranchError as error:
            if self._secrets is None:
                raise
            if not self._failing:
                _logger.error(
                    "the secret between brokers cannot be read, and the last one stays in use: %s", error
                )
            self._failing = True
        return self._secrets


class PeerMachine(ClientMachine):
    """The dialing end of a link between brokers."""

    def __init__(self, proof: DialingProof, *, now: float, keep_alive_s: float) -> None:
        super().__init__(
            PEER_VERSION,
            now=now,
            keep_alive_s=keep_alive_s,
            auth_method=PEER_AUTHENTICATION,
            auth_data=proof.hello,
        )
        self._proof = proof
        self._answered = False

    def _shake_hands(self, command: Command, now: float) -> bool:
        if isinstance(command, pb.CommandAuthChallenge):
            if self.established or self._answered:
                raise RemoteProtocolError("the peer asked for a second proof")
            self._answered = True
            self._output.append(self.auth_response(self._proof.answer(command.challenge.auth_data)))
            return False
        if isinstance(command, pb.CommandConnected) and not self._answered:
            raise AuthenticationError("the other end did not prove that it knows the secret between brokers")
        return super()._shake_hands(command, now)
