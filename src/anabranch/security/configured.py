"""The gate that the settings of a broker ask for. Libraries of cryptography are imported only if needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from anabranch.clock import Clock
from anabranch.config import BrokerConfig
from anabranch.config_authorization import split_roles
from anabranch.errors import InvalidConfigurationError
from anabranch.rights.callers import is_role
from anabranch.security.audit import AuditLines, AuditLog, BufferedAudit, NoAudit
from anabranch.security.audit_file import AuditFile, append_to_stderr
from anabranch.security.authentication import (
    AuthenticationMethods,
    Authenticator,
    TokenAuthentication,
    TokenVerifier,
)
from anabranch.security.gate import Gate

_PULSAR: Final = {
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": "token",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": "tls",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic": "basic",
    "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID": "openid",
}
PROVIDERS: Final = ("token", "openid", "tls", "basic")


def providers_of(config: BrokerConfig) -> tuple[str, ...]:
    """The short names of the configured methods; raises InvalidConfigurationError."""
    given = [one.strip() for one in config.authentication_providers.split(",") if one.strip()]
    names = tuple(dict.fromkeys(_PULSAR.get(one, one) for one in given))
    wrong = [name for name in names if name not in PROVIDERS]
    if wrong or not names:
        raise InvalidConfigurationError(
            f"setting authentication_providers must name some of {', '.join(PROVIDERS)}, "
            f"not {', '.join(wrong) or 'none'}"
        )
    return names


def make_gate(config: BrokerConfig, clock: Clock, audit: AuditLog) -> Gate:
    """The gate of one worker; raises InvalidConfigurationError if a key cannot be used."""
    return Gate(
        make_authentication(config, clock) if config.authentication else None,
        audit,
        proxies=split_roles(config.proxy_roles),
        check_original=config.authenticate_original,
        note_successes=config.audit_successes,
    )


def make_audit(config: BrokerConfig, clock: Clock, worker: int) -> AuditLog:
    """The audit log of one worker, in the file that all workers share."""
    if config.audit_log == "off":
        return NoAudit()
    lines = AuditLines(clock, worker)
    if config.audit_log == "stderr":
        return BufferedAudit(lines, append_to_stderr)
    path = Path(config.data) / config.audit_log
    return BufferedAudit(lines, AuditFile(path, config.audit_log_bytes_max, config.audit_log_files).append)


def make_authentication(config: BrokerConfig, clock: Clock) -> AuthenticationMethods:
    def now_s() -> float:
        return clock.wall_ms() / 1000

    if config.anonymous_role and not is_role(config.anonymous_role):
        raise InvalidConfigurationError("setting anonymous_role is not a valid role")
    methods: dict[str, Authenticator] = {}
    verifiers: list[TokenVerifier] = []
    for name in providers_of(config):
        if name == "token":
            verifiers.append(_static_tokens(config, now_s))
        else:
            raise InvalidConfigurationError(f"authentication by {name} is not supported")
    if verifiers:
        methods["token"] = TokenAuthentication(verifiers)
    return AuthenticationMethods(methods, config.anonymous_role)


def _static_tokens(config: BrokerConfig, now_s: Callable[[], float]) -> TokenVerifier:
    from anabranch.security.secret_files import Watched
    from anabranch.security.token_keys import public_key, secret_key
    from anabranch.security.tokens import StaticTokens, TokenRules

    if config.token_audience_claim and not config.token_audience:
        raise InvalidConfigurationError("setting token_audience_claim needs token_audience too")
    rules = TokenRules(
        role_claim=config.token_role_claim or "sub",
        audience_claim=config.token_audience_claim or "aud",
        audiences=(config.token_audience,) if config.token_audience else (),
        skew_s=config.token_clock_skew_s,
    )
    # As in Pulsar, a secret key comes before a public one.
    if config.token_secret_key:
        key = Watched("token_secret_key", config.token_secret_key, secret_key, now_s)
    elif config.token_public_key:
        parse = partial(public_key, algorithm=config.token_public_algorithm)
        key = Watched("token_public_key", config.token_public_key, parse, now_s)
    else:
        raise InvalidConfigurationError(
            "authentication by token needs a key: set token_secret_key, token_public_key or token_key_set"
        )
    return StaticTokens(key.value, rules, now_s)
