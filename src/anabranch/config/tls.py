"""The settings of TLS: ports, files and what is demanded of the other end."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.config.fields import OFF, comma_list, port_setting, setting
from anabranch.errors import InvalidConfigurationError

PROTOCOLS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """The part of a broker's settings that concerns TLS."""

    tls_port: int = port_setting(
        OFF, "Port of the binary protocol over TLS, 6651 by convention.", pulsar="brokerServicePortTls"
    )
    https_port: int = port_setting(
        OFF, "Port of the admin API and metrics over TLS, 8443 by convention.", pulsar="webServicePortTls"
    )
    tls_certificate_file: str = setting(
        "", "Certificate of the broker and its intermediates, as PEM.", pulsar="tlsCertificateFilePath"
    )
    tls_key_file: str = setting(
        "", "Private key of the certificate, as PEM without a password.", pulsar="tlsKeyFilePath"
    )
    tls_trust_file: str = setting(
        "",
        "Certificates of the authorities whose client certificates are accepted, as PEM; clients are asked.",
        pulsar="tlsTrustCertsFilePath",
    )
    tls_require_client_certificate: bool = setting(
        False,
        "Refuse clients that show no certificate of a trusted authority.",
        pulsar="tlsRequireTrustedClientCertOnConnect",
    )
    tls_allow_insecure: bool = setting(
        False,
        "Do not ask clients for certificates and do not verify those of other brokers. For tests only.",
        pulsar="tlsAllowInsecureConnection",
    )
    tls_protocols: str = setting(
        "", "Accepted versions of TLS, separated by commas; all secure ones if empty.", pulsar="tlsProtocols"
    )
    tls_ciphers: str = setting(
        "",
        "Accepted ciphers of TLS 1.2, separated by commas; empty means all with forward secrecy and AEAD.",
        pulsar="tlsCiphers",
    )
    tls_refresh_s: float = setting(
        300.0,
        "Interval between checks for changed files; 0 means one second. New connections use the new files.",
        pulsar="tlsCertRefreshCheckDurationSec",
        low=0,
    )
    broker_client_tls: bool = setting(
        False,
        "Brokers call each other over TLS. Without a plain port they do so anyway.",
        pulsar="brokerClientTlsEnabled",
    )
    broker_client_trust_file: str = setting(
        "",
        "Authorities of the other brokers, as PEM; tls_trust_file if empty. Their own one is trusted.",
        pulsar="brokerClientTrustCertsFilePath",
    )
    broker_client_certificate_file: str = setting(
        "",
        "Certificate that a broker shows to others; if empty and one is required, tls_certificate_file.",
        pulsar="brokerClientCertificateFilePath",
    )
    broker_client_key_file: str = setting(
        "", "Key of that certificate; tls_key_file if empty.", pulsar="brokerClientKeyFilePath"
    )
    broker_client_hostname_verification: bool = setting(
        True,
        "Brokers check that the certificate of another broker names its host.",
        pulsar="tlsHostnameVerificationEnabled",
    )

    @property
    def has_tls(self) -> bool:
        return self.tls_port != OFF or self.https_port != OFF

    @property
    def protocols(self) -> list[str]:
        return comma_list(self.tls_protocols) or list(PROTOCOLS)

    def check_tls(self) -> None:
        """Raise InvalidConfigurationError for settings that contradict each other."""
        if self.has_tls and not (self.tls_certificate_file and self.tls_key_file):
            raise InvalidConfigurationError(
                "a TLS port needs a certificate: set tls_certificate_file and tls_key_file"
            )
        if self.tls_require_client_certificate and (self.tls_allow_insecure or not self.tls_trust_file):
            raise InvalidConfigurationError(
                "tls_require_client_certificate needs tls_trust_file, and tls_allow_insecure must be false"
            )
        if bool(self.broker_client_certificate_file) != bool(self.broker_client_key_file):
            raise InvalidConfigurationError(
                "set broker_client_certificate_file and broker_client_key_file together"
            )
        if self.broker_client_tls and self.tls_port == OFF:
            raise InvalidConfigurationError("broker_client_tls needs tls_port")
        if set(self.protocols).difference(PROTOCOLS):
            raise InvalidConfigurationError(
                f"setting tls_protocols takes {' and '.join(PROTOCOLS)}, not {self.tls_protocols!r}; "
                "older versions are not secure"
            )
