"""Weak points in the settings of a broker, as a function on the settings.

Each rule is a line of a table. Knows no file: `weak_files` looks at keys and the data directory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from anabranch.config.authorization import split_roles
from anabranch.config.broker import BrokerConfig
from anabranch.config.doors import is_loopback
from anabranch.config.fields import OFF, comma_list

Severity = Literal["danger", "warning", "note"]


class Weakness(NamedTuple):
    """One weak point: its name, the fact, the reason why it matters, and the remedy."""

    severity: Severity
    name: str
    what: str
    why: str
    remedy: str


class _Rule(NamedTuple):
    found: Callable[[BrokerConfig], bool]
    weakness: Weakness


def _open(config: BrokerConfig) -> bool:
    return not is_loopback(config.host)


def _has_plain_port(config: BrokerConfig) -> bool:
    return config.port != OFF or config.http_port != OFF


def _uses(config: BrokerConfig, method: str) -> bool:
    return config.authentication and method in config.authentication_providers.lower()


def _is_inline(value: str) -> bool:
    return value.startswith("data:")


_RULES: Final = (
    _Rule(
        lambda c: _open(c) and not c.authentication,
        Weakness(
            "danger",
            "no-authentication",
            "other machines reach the broker, and it asks for no credentials",
            "any of them may read, write and delete everything",
            "set authenticationEnabled=true and a key of tokens, or listen on 127.0.0.1",
        ),
    ),
    _Rule(
        lambda c: c.authentication and not c.authorization,
        Weakness(
            "danger",
            "no-authorization",
            "roles are proven, but need no rights",
            "every role may do everything, in every tenant",
            "set authorizationEnabled=true and superUserRoles, then grant rights",
        ),
    ),
    _Rule(
        lambda c: "*" in split_roles(c.superuser_roles),
        Weakness(
            "danger",
            "wildcard-superuser",
            "superUserRoles contains *",
            "a wildcard there reads like a superuser right for every role",
            "name each superuser role",
        ),
    ),
    _Rule(
        lambda c: bool(c.anonymous_role) and c.anonymous_role in split_roles(c.superuser_roles),
        Weakness(
            "danger",
            "anonymous-superuser",
            "the role of clients without credentials is a superuser",
            "a client without credentials may do everything",
            "remove anonymousUserRole from superUserRoles",
        ),
    ),
    _Rule(
        lambda c: c.authentication and bool(c.anonymous_role),
        Weakness(
            "warning",
            "anonymous-role",
            "clients without credentials get a role",
            "rights that are granted to that role hold for every client of the network",
            "leave anonymousUserRole empty, unless such clients are meant",
        ),
    ),
    _Rule(
        lambda c: bool(split_roles(c.proxy_roles) & split_roles(c.superuser_roles)),
        Weakness(
            "warning",
            "proxy-superuser",
            "a proxy role is a superuser",
            "the proxy adds no limit of its own to the clients it speaks for",
            "give proxies a role of their own with the rights they need",
        ),
    ),
    _Rule(
        lambda c: _open(c) and _has_plain_port(c) and _uses(c, "basic"),
        Weakness(
            "danger",
            "basic-without-tls",
            "clients may send passwords over connections without TLS",
            "every machine on the way can read and reuse them",
            "set the TLS ports, and leave brokerServicePort and webServicePort empty",
        ),
    ),
    _Rule(
        lambda c: _open(c) and not c.has_tls,
        Weakness(
            "danger",
            "no-tls",
            "other machines reach the broker, and it has no TLS port",
            "messages, tokens and passwords cross the network in the clear",
            "set brokerServicePortTls, webServicePortTls, tlsCertificateFilePath and tlsKeyFilePath",
        ),
    ),
    _Rule(
        lambda c: _open(c) and c.has_tls and _has_plain_port(c),
        Weakness(
            "warning",
            "plain-ports",
            "other machines reach the broker without TLS, too",
            "a client with the wrong URL sends its credentials in the clear",
            "leave brokerServicePort and webServicePort empty",
        ),
    ),
    _Rule(
        lambda c: _open(c) and c.workers > 1 and c.port != OFF and not c.broker_client_tls,
        Weakness(
            "warning",
            "plain-between-brokers",
            "workers call each other without TLS, over an address that other machines reach",
            "the calls carry every right, and a machine on the way can read and change them",
            "set brokerClientTlsEnabled=true, or leave brokerServicePort empty",
        ),
    ),
    _Rule(
        lambda c: c.tls_allow_insecure,
        Weakness(
            "danger",
            "tls-insecure",
            "certificates are not verified",
            "any machine on the way can take the place of a client or a broker",
            "set tlsAllowInsecureConnection=false",
        ),
    ),
    _Rule(
        lambda c: c.has_tls and not c.broker_client_hostname_verification,
        Weakness(
            "warning",
            "no-hostname-verification",
            "brokers do not compare the host names in each other's certificates",
            "the owner of any certificate of the same authority can take the place of a broker",
            "set tlsHostnameVerificationEnabled=true",
        ),
    ),
    _Rule(
        lambda c: _uses(c, "openid") and not c.openid_require_https,
        Weakness(
            "danger",
            "issuer-without-https",
            "keys of issuers may be fetched without TLS",
            "a machine on the way can put its own keys in their place and issue tokens",
            "set openIDRequireIssuersUseHttps=true",
        ),
    ),
    _Rule(
        lambda c: c.token_key_set.startswith("http://"),
        Weakness(
            "danger",
            "key-set-without-https",
            "the key set of tokens is fetched without TLS",
            "a machine on the way can put its own keys in their place and issue tokens",
            "use an https URL or a file",
        ),
    ),
    _Rule(
        lambda c: _is_inline(c.token_secret_key) or _is_inline(c.basic_auth_file),
        Weakness(
            "warning",
            "secret-in-settings",
            "a secret is written into the settings",
            "configuration files are copied and shown, and command lines are visible to other users",
            "put the secret into a file with mode 0600 and name the file",
        ),
    ),
    _Rule(
        lambda c: c.authentication and not c.authenticate_metrics,
        Weakness(
            "warning",
            "open-metrics",
            "/metrics needs no credentials",
            "it names tenants, namespaces, topics and subscriptions with their load",
            "set authenticateMetricsEndpoint=true and give the scraper a token",
        ),
    ),
    _Rule(
        lambda c: c.audit_log == "off" and (c.authentication or _open(c)),
        Weakness(
            "warning",
            "no-audit",
            "the audit log is off",
            "refused credentials, changed rights and admin calls leave no trace",
            "set audit_log to a file or to stderr",
        ),
    ),
    _Rule(
        lambda c: "*" in comma_list(c.http_allowed_hosts),
        Weakness(
            "danger",
            "any-host",
            "the admin API answers requests for any host name",
            "a web page can reach it from the browser of an operator by DNS rebinding",
            "list the names of the broker in http_allowed_hosts",
        ),
    ),
    _Rule(
        lambda c: _uses(c, "token") and not c.token_must_expire,
        Weakness(
            "note",
            "tokens-without-expiry",
            "tokens without an expiry are accepted",
            "such a token is valid until the key changes, wherever it was copied",
            "issue tokens with an expiry, and set token_must_expire=true",
        ),
    ),
)


def weak_settings(config: BrokerConfig) -> list[Weakness]:
    """Return the weak points of the settings, in the order of the table."""
    return [rule.weakness for rule in _RULES if rule.found(config)]
