"""The settings of authentication and of the audit log: a part of `BrokerConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.config.fields import secret_setting, setting

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, kw_only=True)
class AuthenticationConfig:
    """How clients prove their roles, and what is written about it."""

    authentication: bool = setting(
        False,
        "Whether clients have to prove a role with credentials. Without it every client may do everything.",
        pulsar="authenticationEnabled",
    )
    authentication_providers: str = setting(
        "token",
        "Accepted methods, separated by commas: token, openid, tls, basic, or Pulsar's class names.",
        pulsar="authenticationProviders",
    )
    authentication_refresh_check_s: float = setting(
        60.0,
        "A client whose credentials expired has this long to send new ones; else it is disconnected.",
        pulsar="authenticationRefreshCheckSeconds",
        low=0.1,
        high=86_400.0,
    )
    anonymous_role: str = setting(
        "",
        "Role of clients without credentials; if empty, such clients are refused.",
        pulsar="anonymousUserRole",
    )
    authenticate_original: bool = setting(
        False,
        "Whether a proxy has to pass on the credentials of its client, which the broker checks too.",
        pulsar="authenticateOriginalAuthData",
    )
    authenticate_metrics: bool = setting(
        True,
        "Whether /metrics needs credentials, where authentication is on.",
        pulsar="authenticateMetricsEndpoint",
    )
    token_secret_key: str = secret_setting(
        "Secret key of tokens (HS256...): a path, file:///path or data:;base64,... Prefer a file.",
        pulsar="tokenSecretKey",
    )
    token_public_key: str = setting(
        "",
        "Public key of tokens (RS256, ES256...): a path, file:///path or data:;base64,...",
        pulsar="tokenPublicKey",
    )
    token_public_algorithm: str = setting(
        "",
        "The only algorithm of tokens with a public key; if empty, any that fits the kind of the key.",
        pulsar="tokenPublicAlg",
    )
    token_key_set: str = setting(
        "",
        "Public keys of tokens as a JSON Web Key Set: a path, file:///path, or an http(s) URL.",
    )
    token_role_claim: str = setting(
        "sub", "The claim of a token that holds the role.", pulsar="tokenAuthClaim"
    )
    token_audience_claim: str = setting(
        "",
        "The claim of a token that holds its audience; if empty, aud is compared if token_audience is set.",
        pulsar="tokenAudienceClaim",
    )
    token_audience: str = setting(
        "",
        "The audience that a token must name; if empty, audiences are not compared.",
        pulsar="tokenAudience",
    )
    token_clock_skew_s: float = setting(
        0.0,
        "How far the clock of the issuer of tokens may differ from the clock of this machine.",
        pulsar="tokenAllowedClockSkewSeconds",
        low=0,
        high=600.0,
    )
    token_must_expire: bool = setting(False, "Whether tokens without an expiry are refused.")
    openid_issuers: str = setting(
        "",
        "URLs of the issuers whose tokens are accepted by the method openid, separated by commas.",
        pulsar="openIDAllowedTokenIssuers",
    )
    openid_audiences: str = setting(
        "",
        "Audiences of which a token of the method openid must name one, separated by commas.",
        pulsar="openIDAllowedAudiences",
    )
    openid_role_claim: str = setting(
        "sub", "The claim of an issuer's token that holds the role.", pulsar="openIDRoleClaim"
    )
    openid_clock_skew_s: float = setting(
        0.0,
        "How far the clocks of issuers may differ from the clock of this machine.",
        pulsar="openIDAcceptedTimeLeewaySeconds",
        low=0,
        high=600.0,
    )
    openid_require_https: bool = setting(
        True,
        "Whether issuers must have https URLs; switch it off only for tests.",
        pulsar="openIDRequireIssuersUseHttps",
    )
    openid_trust_certs_file: str = setting(
        "",
        "Certificates (PEM) of the authorities that are trusted for issuers, instead of the system's.",
        pulsar="openIDTokenIssuerTrustCertsFilePath",
    )
    openid_refresh_s: float = setting(
        64_800.0,
        "The keys of issuers are fetched again after this long.",
        pulsar="openIDCacheRefreshAfterWriteSeconds",
        low=1.0,
    )
    openid_unknown_key_refresh_s: float = setting(
        300.0,
        "A token with an unknown key id has the keys of its issuer fetched again, at most this often.",
        pulsar="openIDKeyIdCacheMissRefreshSeconds",
        low=0.1,
    )
    openid_http_timeout_s: float = setting(
        10.0, "How long a request to an issuer may take.", low=0.1, high=60.0
    )
    basic_auth_file: str = secret_setting(
        "File of user names and password hashes, as htpasswd writes it: a path, file: or data: URL.",
        pulsar="basicAuthConf",
    )
    audit_log: str = setting(
        "audit.log",
        "The audit log goes to a file (relative to the data directory), stderr, or off.",
    )
    audit_log_bytes_max: int = setting(
        64 * MIB, "Size at which the audit log starts a new file.", low=64 * KIB
    )
    audit_log_files: int = setting(
        10, "How many full files of the audit log are kept for each process.", low=1, high=1000
    )
    audit_successes: bool = setting(
        False,
        "Whether the audit log also has a line for each accepted client and each admin call that reads.",
    )
