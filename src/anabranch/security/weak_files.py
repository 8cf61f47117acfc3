"""Weak points in the files of a broker: keys, certificates, passwords and the data directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from anabranch.config.broker import BrokerConfig
from anabranch.errors import InvalidConfigurationError, counted
from anabranch.security.methods.token_keys import RSA_BITS_MIN, public_key, secret_key
from anabranch.security.peer_secret_file import SECRET_FILE, PeerSecretFile
from anabranch.security.weak_settings import Weakness

SOON: Final = timedelta(days=30)
WEAK_HASHES: Final = ("$apr1$", "{SHA}", "$1$")
AHEAD_S: Final = 300.0
"""How far the time of a file may lie in the future before the clock is doubted."""


def weak_files(config: BrokerConfig, now: datetime) -> list[Weakness]:
    """Return the weak points of the files that the settings name, and of an existing data directory."""
    found: list[Weakness] = []
    for look in (_token_keys, _passwords, _tls, _data):
        found += look(config, now)
    return found


def _token_keys(config: BrokerConfig, now: datetime) -> Iterator[Weakness]:
    if not config.authentication:
        return
    yield from _key("token_secret_key", config.token_secret_key, secret_key, private=True)
    yield from _key("token_public_key", config.token_public_key, public_key, private=False)


def _key(setting: str, source: str, parse: Callable[[bytes], object], *, private: bool) -> Iterator[Weakness]:
    file = path_of(source)
    if file is None:
        return
    try:
        parse(file.read_bytes())
    except (OSError, InvalidConfigurationError) as error:
        yield _unusable(setting, file, error)
        return
    if private:
        yield from _readable_by_others(f"the key in {setting}", file)


def _passwords(config: BrokerConfig, now: datetime) -> Iterator[Weakness]:
    file = path_of(config.basic_auth_file) if config.authentication else None
    if file is None:
        return
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        yield _unusable("basic_auth_file", file, error)
        return
    yield from _readable_by_others("the file of passwords", file)
    weak = [line.partition(":")[0] for line in lines if line.partition(":")[2].startswith(WEAK_HASHES)]
    if weak:
        yield Weakness(
            "warning",
            "weak-password-hash",
            f"{file} has {counted(len(weak), 'password')} with a fast hash: {', '.join(weak[:5])}",
            "a copy of the file gives the passwords away within hours",
            "write them again with `htpasswd -B`",
        )


def _tls(config: BrokerConfig, now: datetime) -> Iterator[Weakness]:
    if not config.has_tls:
        return
    key, certificate = Path(config.tls_key_file), Path(config.tls_certificate_file)
    try:
        yield from _readable_by_others("the key of the certificate", key)
        yield from _certificate(certificate, now)
    except (OSError, ValueError) as error:
        yield _unusable("tls_certificate_file or tls_key_file", certificate, error)


def _certificate(file: Path, now: datetime) -> Iterator[Weakness]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import rsa

    found = x509.load_pem_x509_certificates(file.read_bytes())[0]
    begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
    renew = "renew it; the broker reads the new file without a restart"
    if ends <= now:
        yield Weakness(
            "danger", "certificate-expired", f"{file} expired on {ends:%F}", "clients refuse it", renew
        )
    elif ends <= now + SOON:
        yield Weakness(
            "warning", "certificate-expires", f"{file} expires on {ends:%F}", "clients will refuse it", renew
        )
    if begins > now:
        yield Weakness(
            "danger",
            "certificate-not-valid-yet",
            f"{file} is valid only from {begins:%F %T} UTC on",
            "clients refuse it, or the clock of this machine is wrong",
            "set the clock, or issue the certificate again",
        )
    key = found.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < RSA_BITS_MIN:
        yield Weakness(
            "danger",
            "short-key",
            f"the key of {file} has {key.key_size} bits",
            "keys of this size can be broken",
            f"use RSA with at least {RSA_BITS_MIN} bits, or an elliptic curve",
        )


def _data(config: BrokerConfig, now: datetime) -> Iterator[Weakness]:
    root = Path(config.data)
    if not root.is_dir():
        return
    mode = stat.S_IMODE(root.stat().st_mode)
    if mode & 0o077:
        yield Weakness(
            "danger",
            "open-data-directory",
            f"{root} has mode {mode:04o}",
            "other users of this machine may reach messages and secrets",
            f"run `chmod 700 {root}`",
        )
    if os.path.lexists(root / SECRET_FILE):
        try:
            PeerSecretFile(root).load()
        except InvalidConfigurationError as error:
            yield _unusable("the secret between brokers", root / SECRET_FILE, error)
    ahead = [file.name for file in root.iterdir() if file.lstat().st_mtime > now.timestamp() + AHEAD_S]
    if ahead:
        yield Weakness(
            "warning",
            "clock",
            f"files in {root} were written in the future: {', '.join(sorted(ahead)[:5])}",
            "the clock was set back; tokens and certificates that expired may count as valid",
            "let a time service such as chrony keep the clock",
        )


def _readable_by_others(name: str, file: Path) -> Iterator[Weakness]:
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        yield Weakness(
            "danger" if mode & 0o007 else "warning",
            "readable-secret",
            f"{name}, {file}, has mode {mode:04o}",
            "other users of this machine may copy it and take any role it proves",
            f"run `chmod 600 {file}`",
        )


def _unusable(name: str, file: Path, error: Exception) -> Weakness:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Weakness(
        "danger", "unusable-file", f"{name}, {file}: {reason}", "the broker does not start", "repair it"
    )


def path_of(source: str) -> Path | None:
    """Return the file that a setting names; None if the setting is empty, or holds data or a URL."""
    if not source or source.startswith(("data:", "http:", "https:")):
        return None
    return Path(unquote(urlsplit(source).path) if source.startswith("file:") else source)
