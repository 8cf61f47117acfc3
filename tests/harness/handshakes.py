"""TLS handshakes in memory, without a socket."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from anabranch.transport.certificates import PeerCertificate, peer_certificate


@dataclass(frozen=True, slots=True)
class Handshaken:
    """The result of a handshake."""

    version: str
    cipher: str
    certificate: PeerCertificate | None
    """The certificate of the client, as the server sees it."""
    server_serial: int


class MemoryPeer:
    """One end, with what a transport would tell of the other."""

    def __init__(self, context: ssl.SSLContext, *, host: str | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=host is None, server_hostname=host
        )
        self.done = False

    def step(self) -> None:
        try:
            self.tls.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass

    def get_extra_info(self, name: str) -> Any:
        return self.tls.getpeercert() if name == "peercert" else None


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1") -> Handshaken:
    """Raises the ssl.SSLError of the end that refuses."""
    ours, theirs = MemoryPeer(server), MemoryPeer(client, host=host)
    while not (ours.done and theirs.done):
        theirs.step()
        ours.incoming.write(theirs.outgoing.read())
        ours.step()
        theirs.incoming.write(ours.outgoing.read())
    cipher = ours.tls.cipher()
    shown = theirs.tls.getpeercert(binary_form=True)
    assert cipher is not None
    assert shown is not None
    serial = x509.load_der_x509_certificate(shown).serial_number
    return Handshaken(ours.tls.version() or "", cipher[0], peer_certificate(ours), serial)
