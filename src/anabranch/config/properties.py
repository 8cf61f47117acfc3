"""Files in the format of Pulsar's broker.conf: Java properties, many of which mean nothing to this broker.

Settings that protect a Pulsar broker and have no counterpart here are refused: a broker must not run
without a protection that its file asks for. Knows nothing of the settings of this broker but their names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from anabranch.errors import InvalidConfigurationError

_NO: Final = ("false",)
_STORES: Final = "use PEM files: tlsCertificateFilePath, tlsKeyFilePath and tlsTrustCertsFilePath"
_FACTORIES: Final = "Java TLS factories are not supported"
_PROVIDERS: Final = ("jdk", "openssl", "openssl_refcnt", "sunjsse", "conscrypt")
_PROVIDER: Final = "TLS is that of OpenSSL, whose build decides about FIPS"


class Unsupported(NamedTuple):
    """A setting of Pulsar that protects, and that this broker does not have."""

    harmless: tuple[str, ...]
    """Values, in small letters, with which the setting asks for nothing; an empty value is one too."""
    advice: str


PROTECTING: Final[Mapping[str, Unsupported]] = {
    "authorizationProvider": Unsupported(
        ("org.apache.pulsar.broker.authorization.pulsarauthorizationprovider",),
        "this broker has the rights of Pulsar's own provider and no other",
    ),
    "strictAuthMethod": Unsupported(_NO, "list the only accepted methods in authenticationProviders"),
    "athenzDomainNames": Unsupported((), "Athenz is not supported; use token, tls, basic or openid"),
    "saslJaasServerRoleTokenSignerSecretPath": Unsupported(
        (), "SASL is not supported; use token, tls, basic or openid"
    ),
    "authenticationRoleLoggingAnonymizer": Unsupported(("none",), "logs show roles as they are"),
    "tokenSettingPrefix": Unsupported((), "there is one group of token settings"),
    "openIDFallbackDiscoveryMode": Unsupported(("disabled",), "keys of issuers come from their own URLs"),
    "encryptionRequireOnProducer": Unsupported(_NO, "the broker cannot tell encrypted messages from others"),
    "tlsEnabled": Unsupported(_NO, "set brokerServicePortTls and webServicePortTls"),
    "tlsEnabledWithKeyStore": Unsupported(_NO, _STORES),
    "tlsKeyStore": Unsupported((), _STORES),
    "tlsKeyStorePassword": Unsupported((), _STORES),
    "tlsTrustStore": Unsupported((), _STORES),
    "tlsTrustStorePassword": Unsupported((), _STORES),
    "tlsFactoryClassName": Unsupported((), _FACTORIES),
    "tlsFactoryConfig": Unsupported((), _FACTORIES),
    "sslFactoryPlugin": Unsupported(("org.apache.pulsar.common.util.defaultpulsarsslfactory",), _FACTORIES),
    "sslFactoryPluginParams": Unsupported((), _FACTORIES),
    "webServiceTlsCiphers": Unsupported((), "tlsCiphers holds for both ports"),
    "webServiceTlsProtocols": Unsupported((), "tlsProtocols holds for both ports"),
    "brokerClientTlsEnabledWithKeyStore": Unsupported(_NO, _STORES),
    "brokerClientTlsKeyStore": Unsupported((), _STORES),
    "brokerClientTlsTrustStore": Unsupported((), _STORES),
    "brokerClientTlsKeyStorePassword": Unsupported((), _STORES),
    "brokerClientTlsTrustStorePassword": Unsupported((), _STORES),
    "brokerClientTlsFactoryClassName": Unsupported((), _FACTORIES),
    "brokerClientTlsFactoryConfig": Unsupported((), _FACTORIES),
    "brokerClientTlsCiphers": Unsupported((), "tlsCiphers holds between brokers too"),
    "brokerClientTlsProtocols": Unsupported((), "tlsProtocols holds between brokers too"),
    "brokerClientSslFactoryPlugin": Unsupported(
        ("org.apache.pulsar.common.util.defaultpulsarsslfactory",), _FACTORIES
    ),
    "brokerClientSslFactoryPluginParams": Unsupported((), _FACTORIES),
    **{
        name: Unsupported(_PROVIDERS, _PROVIDER)
        for name in (
            "tlsProvider",
            "webServiceTlsProvider",
            "jsseProvider",
            "brokerClientSslProvider",
            "brokerClientJsseProvider",
        )
    },
    "httpRequestsLimitEnabled": Unsupported(_NO, "HTTP is limited by maxHttpServerConnections"),
    "maxSameAddressProducersPerTopic": Unsupported(("0",), "use maxProducersPerTopic"),
    "maxSameAddressConsumersPerTopic": Unsupported(("0",), "use maxConsumersPerTopic"),
    "haProxyProtocolEnabled": Unsupported(_NO, "the broker does not speak HAProxy's protocol"),
    "webServiceHaProxyProtocolEnabled": Unsupported(_NO, "the broker does not speak HAProxy's protocol"),
    "brokerInterceptors": Unsupported((), "Java interceptors are not supported"),
    "bindAddresses": Unsupported((), "set bindAddress and the ports"),
}
"""Refused with any value but a harmless one, unless this broker has a setting of that name."""

ZERO_IS_UNLIMITED: Final = ("brokerMaxConnections",)
"""Settings whose value 0 means no limit in Pulsar; here the default holds then."""


class ForeignSettings(NamedTuple):
    """The content of a file, sorted out."""

    given: dict[str, str]
    """Settings of this broker, under the names in the file."""
    without_effect: list[str]


def sort_out(found: Mapping[str, str], ours: Collection[str], where: str) -> ForeignSettings:
    """Sort settings into those of this broker and those without effect; refuse protecting ones.

    A name that neither Anabranch nor Pulsar has stays among those of this broker, so that the caller refuses
    it.
    """
    from importlib import resources  # It takes longer than all of this module, and few files need it.

    known = set(resources.files("anabranch.config").joinpath("pulsar_settings.txt").read_text().split())
    given: dict[str, str] = {}
    without_effect: list[str] = []
    for name, value in found.items():
        if name in ours or name not in known:
            if not (name in ZERO_IS_UNLIMITED and value == "0"):
                given[name] = value
            continue
        wanted = PROTECTING.get(name)
        if value and wanted is not None and value.lower() not in wanted.harmless:
            raise InvalidConfigurationError(
                f"{where}{name} is not supported, and without it this broker would be less protected than "
                f"the file asks for: {wanted.advice}; remove the setting"
            )
        if value:
            without_effect.append(name)
    return ForeignSettings(given, without_effect)


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings in a text; the last one of equal names counts."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        # The key ends at the first equals sign, colon or space that no backslash precedes.
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        assert match is not None
        found[_unescape(match[1])] = _unescape(match[2]).strip()
    return found


def _logical_lines(text: str) -> Iterator[str]:
    joined = ""
    for line in re.split(r"\r\n|\r|\n", text):
        part = line.lstrip(" \t\f")
        if not joined and (not part or part[0] in "#!"):
            continue
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            joined += part[:-1]
            continue
        yield joined + part
        joined = ""
    if joined:
        yield joined


def _unescape(text: str) -> str:
    letters = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def replace(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else letters.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text, flags=re.DOTALL)
