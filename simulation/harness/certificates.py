"""Certificates for tests and benchmarks: an authority, servers and clients, as PEM files in one directory."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """Issues certificates; `file` holds its own, which others trust."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        made = self._builder(subject, subject, 3650).public_key(self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = str(directory / f"{name.replace(' ', '-')}.pem")
        Path(self.file).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def server(self, name: str = "broker", hosts: Sequence[str] = LOCAL, *, days: float = 365) -> Pair:
        """A certificate for a broker at these hosts; it has expired if `days` is negative."""
        alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
        return self._issue(name, [alternatives] if hosts else [], days)

    def client(self, role: str, *, days: float = 365, file: str | None = None) -> Pair:
        """A certificate whose common name is a role."""
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        return self._issue(role, [usage], days, file)

    def _issue(
        self, name: str, extensions: Sequence[x509.ExtensionType], days: float, file: str | None = None
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(_name(name), _name(self._name), days).public_key(key.public_key())
        for extension in extensions:
            made = made.add_extension(extension, critical=False)
        pair = Pair(*(str(self._directory / f"{file or name}{end}") for end in (".cert.pem", ".key.pem")))
        Path(pair.certificate).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        secret = Path(pair.key)
        secret.touch(mode=0o600)
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _builder(self, subject: x509.Name, issuer: x509.Name, days: float) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=max(1.0, 1.0 - days)))
            .not_valid_after(now + timedelta(days=days))
        )


def tls_settings(pair: Pair, trust: str = "") -> dict[str, object]:
    """Broker settings that open both TLS ports on free numbers."""
    found: dict[str, object] = {
        "tls_port": 0,
        "https_port": 0,
        "tls_certificate_file": pair.certificate,
        "tls_key_file": pair.key,
    }
    return {**found, "tls_trust_file": trust} if trust else found


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
