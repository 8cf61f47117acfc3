"""The gate that the settings of a broker ask for. Libraries of cryptography are imported only if needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anabranch.clock import Clock
from anabranch.config.authorization import split_roles
from anabranch.config.broker import BrokerConfig
from anabranch.config.fields import comma_list
from anabranch.errors import InvalidConfigurationError
from anabranch.rights.callers import is_role
from anabranch.security.attempts import Attempts
from anabranch.security.audit import AuditLog, AuditRecords, BufferedAudit, NoAudit
from anabranch.security.audit_file import AuditFile, append_to_stderr
from anabranch.security.authentication import (
    AuthenticationMethods,
    Authenticator,
    TokenAuthentication,
    TokenVerifier,
)
from anabranch.security.gate import Gate
from anabranch.security.methods.token_keys import TokenKey

if TYPE_CHECKING:
    from anabranch.security.outside import Outside

FindKey = Callable[[str], Awaitable[TokenKey]]

_PULSAR: Final = {
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": "token",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": "tls",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic": "basic",
    "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID": "openid",
}
PROVIDERS: Final = ("token", "openid", "tls", "basic")


def providers_of(config: BrokerConfig) -> tuple[str, ...]:
    """Return the short names of the configured methods; raises InvalidConfigurationError."""
    names = tuple(dict.fromkeys(_PULSAR.get(one, one) for one in comma_list(config.authentication_providers)))
    wrong = [name for name in names if name not in PROVIDERS]
    if wrong or not names:
        raise InvalidConfigurationError(
            f"setting authentication_providers must name some of {', '.join(PROVIDERS)}, "
            f"not {', '.join(wrong) or 'none'}"
        )
    return names


def make_audit(config: BrokerConfig, clock: Clock, worker: int) -> AuditLog:
    """Return the audit log of one worker, in the file that all workers share."""
    if config.audit_log == "off":
        return NoAudit()
    lines = AuditRecords(clock, worker)
    if config.audit_log == "stderr":
        return BufferedAudit(lines, append_to_stderr)
    path = Path(config.data) / config.audit_log
    if not config.audit_log or path.is_dir() or not path.parent.is_dir():
        raise InvalidConfigurationError(
            f"setting audit_log: {path} cannot be a file; name a file in a folder that exists, stderr or off"
        )
    return BufferedAudit(lines, AuditFile(path, config.audit_log_bytes_max, config.audit_log_files).append)


def make_gate(config: BrokerConfig, clock: Clock, audit: AuditLog, outside: Outside | None = None) -> Gate:
    """Return the gate of one worker; raises InvalidConfigurationError if a key cannot be used."""
    authentication = None
    if config.authentication:
        if outside is None:
            from anabranch.security.outside import Outside

            outside = Outside.of_this_machine(config.openid_trust_certs_file, config.openid_http_timeout_s)
        authentication = _Making(config, clock, outside).methods()
    return Gate(
        authentication,
        audit,
        proxies=split_roles(config.proxy_roles),
        check_original=config.authenticate_original,
        note_successes=config.audit_successes,
    )


class _Making:
    """Makes the methods of a gate."""

    def __init__(self, config: BrokerConfig, clock: Clock, outside: Outside) -> None:
        self._config = config
        self._clock = clock
        self._outside = outside
        self._attempts = Attempts(lambda: asyncio.get_running_loop().time())

    def now_s(self) -> float:
        return self._clock.wall_ms() / 1000

    def methods(self) -> AuthenticationMethods:
        config = self._config
        if config.anonymous_role and not is_role(config.anonymous_role):
            raise InvalidConfigurationError("setting anonymous_role is not a valid role")
        names = providers_of(config)
        methods: dict[str, Authenticator] = {}
        verifiers = [*(self._tokens() if "token" in names else ())]
        verifiers += [self._issued_tokens()] if "openid" in names else []
        if verifiers:
            methods["token"] = TokenAuthentication(verifiers)
        if "tls" in names:
            methods["tls"] = self._certificates()
        if "basic" in names:
            methods["basic"] = self._passwords()
        return AuthenticationMethods(methods, self._attempts, config.anonymous_role)

    def _tokens(self) -> list[TokenVerifier]:
        from anabranch.security.methods.tokens import StaticTokens, TokenRules

        config = self._config
        if config.token_audience_claim and not config.token_audience:
            raise InvalidConfigurationError("setting token_audience_claim needs token_audience too")
        rules = TokenRules(
            role_claim=config.token_role_claim or "sub",
            audience_claim=config.token_audience_claim or "aud",
            audiences=(config.token_audience,) if config.token_audience else (),
            skew_s=config.token_clock_skew_s,
            must_expire=config.token_must_expire,
        )
        key = self._token_key()
        verifiers: list[TokenVerifier] = [StaticTokens(key, rules, self.now_s)] if key else []
        if config.token_key_set:
            from anabranch.security.methods.issuers import KeySetTokens

            verifiers.append(KeySetTokens(self._key_set(), rules, self.now_s))
        if not verifiers:
            raise InvalidConfigurationError(
                "authentication by token needs a key: set token_secret_key, token_public_key or "
                "token_key_set; `anabranch token create-secret-key` makes one"
            )
        return verifiers

    def _token_key(self) -> Callable[[], TokenKey] | None:
        from anabranch.security.methods.token_keys import public_key, secret_key
        from anabranch.security.secret_files import Watched

        config = self._config
        # As in Pulsar, a secret key comes before a public one.
        if config.token_secret_key:
            return Watched("token_secret_key", config.token_secret_key, secret_key, self.now_s).value
        if config.token_public_key:
            parse = partial(public_key, algorithm=config.token_public_algorithm)
            return Watched("token_public_key", config.token_public_key, parse, self.now_s).value
        return None

    def _key_set(self) -> FindKey:
        from anabranch.security.methods.issuers import check_url
        from anabranch.security.methods.key_sets import KeySet, known_key
        from anabranch.security.secret_files import Watched

        source = self._config.token_key_set
        if source.startswith(("http://", "https://")):
            check_url(source, require_https=self._config.openid_require_https)
            return self._remote(partial(self._outside.fetch, source), source)
        watched = Watched("token_key_set", source, KeySet.parse, self.now_s)

        async def find(key_id: str) -> TokenKey:
            return known_key(watched.value(), key_id, "the key set")

        return find

    def _issued_tokens(self) -> TokenVerifier:
        from anabranch.security.methods.issuers import IssuedTokens, KeySetTokens, discover, rules_of
        from anabranch.security.methods.tokens import TokenRules

        config = self._config
        issuers, audiences = comma_list(config.openid_issuers), comma_list(config.openid_audiences)
        if not issuers or not audiences:
            raise InvalidConfigurationError(
                "authentication by openid needs the settings openid_issuers and openid_audiences"
            )
        rules = TokenRules(
            role_claim=config.openid_role_claim or "sub",
            audiences=tuple(audiences),
            skew_s=config.openid_clock_skew_s,
        )
        verifiers = {}
        for issuer in issuers:
            fetch = discover(issuer, self._outside.fetch, require_https=config.openid_require_https)
            verifiers[issuer] = KeySetTokens(self._remote(fetch, issuer), rules_of(rules, issuer), self.now_s)
        return IssuedTokens(verifiers)

    def _remote(self, fetch: Callable[[], Awaitable[bytes]], name: str) -> FindKey:
        from anabranch.security.methods.key_sets import RemoteKeySet

        config = self._config
        return RemoteKeySet(fetch, name, config.openid_refresh_s, config.openid_unknown_key_refresh_s).find

    def _certificates(self) -> Authenticator:
        from anabranch.security.methods.client_certificates import CertificateAuthentication

        return CertificateAuthentication(self.now_s)

    def _passwords(self) -> Authenticator:
        from anabranch.security.methods.passwords import PasswordAuthentication, Users
        from anabranch.security.secret_files import Watched

        source = self._config.basic_auth_file
        if not source:
            raise InvalidConfigurationError(
                "authentication by basic needs the setting basic_auth_file; make the file with `htpasswd -B`"
            )
        users = Watched("basic_auth_file", source, Users.parse, self.now_s)
        return PasswordAuthentication(users.value, self._outside, self._attempts)
