"""Parses the text of options: names in any case, values with units.

An unknown name is refused with the most similar known name, because a misspelt limit or start that is
silently ignored costs data or money.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.options.credentials import NAMES as CREDENTIAL_NAMES
from anabranch.spark.options.credentials import read_credentials

Settings = tuple[tuple[str, Any], ...]
"""Keyword arguments of the client as a value: comparable, hashable, picklable."""

CREDENTIALS = "credentials"
"""The setting that holds SparkCredentials; all others are arguments of the client."""

_UNITS_S = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_UNITS_BYTES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}

T = TypeVar("T")


class GivenOptions:
    """The options of one query, by their lower-case names."""

    def __init__(
        self, given: Mapping[str, str], known: tuple[str, ...], later: tuple[str, ...], what: str
    ) -> None:
        self._given = {name.lower(): text for name, text in given.items()}
        names = {name.lower(): name for name in known}
        not_yet = {name.lower(): name for name in later}
        for name in sorted(self._given):
            if name in names or name in _OF_SPARK or name.startswith(PREFIXES):
                continue
            if name in not_yet:
                raise InvalidConfigurationError(f"option {not_yet[name]} of the {what} is not supported yet")
            near = get_close_matches(name, [*names, *not_yet], 1, 0.5)
            hint = (
                f"did you mean {(names | not_yet)[near[0]]}?"
                if near
                else f"its options are {', '.join(known)}"
            )
            raise InvalidConfigurationError(f"the {what} has no option {name}; {hint}")

    def text(self, name: str) -> str | None:
        found = self._given.get(name.lower())
        return None if found is None or not found.strip() else found.strip()

    def required(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise InvalidConfigurationError(
                f"option {name} is required"
                + (", for instance pulsar://127.0.0.1:6650" if name == "service.url" else "")
            )
        return found

    def read(self, name: str, parse: Callable[[str], T], otherwise: Any = None) -> Any:
        text = self.text(name)
        if text is None:
            return otherwise
        try:
            return parse(text)
        except ValueError as error:
            raise InvalidConfigurationError(f"option {name} is {text!r}; {error}") from None

    def either(self, names: tuple[str, ...], parse: Callable[[str], T]) -> Any:
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise InvalidConfigurationError(f"options {' and '.join(given)} mean the same; give one of them")
        return self.read(given[0], parse) if given else None

    def client(self) -> Settings:
        """Return the settings for the client; upper case and punctuation in names do not matter."""
        found: dict[str, Any] = {}
        credentials: dict[str, str] = {}
        for name, text in sorted(self._given.items()):
            setting = re.sub(r"[^a-z]", "", name.removeprefix("pulsar.").removeprefix("client."))
            if setting in CREDENTIAL_NAMES:
                credentials[setting] = text
            elif name.startswith(PREFIXES):
                if setting not in _CLIENT:
                    raise InvalidConfigurationError(
                        f"option {name} is not supported; the client takes {', '.join(_CLIENT_NAMES)}"
                    )
                argument, parse = _CLIENT[setting]
                found[argument] = self.read(name, parse)
        role = read_credentials(credentials)
        if role is not None:
            found[CREDENTIALS] = role
        return tuple(sorted(found.items()))


def flag(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError("it takes true or false")
    return words[text.lower()]


def whole_number(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise ValueError("it takes a whole number")
    return int(text)


def count(text: str) -> int:
    if not re.fullmatch(r"\d*[1-9]\d*", text):
        raise ValueError("it takes a whole number of at least 1")
    return int(text)


def word(text: str, allowed: tuple[str, ...]) -> str:
    if text.lower() not in allowed:
        raise ValueError(f"it takes one of {', '.join(allowed)}")
    return text.lower()


def byte_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if not match or match[2] not in _UNITS_BYTES or int(match[1]) < 1:
        raise ValueError("it takes bytes, such as 1048576, 512k, 64m or 1g")
    return int(match[1]) * _UNITS_BYTES[match[2]]


def duration_s(text: str) -> float:
    """Return a duration in seconds; a number without a unit means milliseconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if not match or match[2] not in _UNITS_S:
        raise ValueError("it takes a time, such as 500 (milliseconds), 500ms, 10s or 15m")
    return float(match[1]) * _UNITS_S[match[2]]


ASYNC_PROGRESS = "asyncProgressTrackingEnabled"

_OF_SPARK = (
    "queryname",
    "checkpointlocation",
    "outputmode",
    ASYNC_PROGRESS.lower(),
    "asyncprogresstrackingcheckpointintervalms",
    "_asyncprogresstrackingoverridesinksupportcheck",
)
"""Options that Spark adds to those of the user, or reads for its own purposes."""

PREFIXES = ("client.", "pulsar.client.")
"""Prefixes of the options that go to the client; the second one is that of Pulsar's own connector."""

_CLIENT_OPTIONS: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("operationTimeout", "operation_timeout", duration_s),
    ("connectTimeout", "connect_timeout", duration_s),
    ("keepAliveInterval", "keep_alive_interval", duration_s),
    ("tlsTrustCertsFilePath", "tls_trust_certs_file_path", str),
    ("tlsCertificateFilePath", "tls_certificate_file_path", str),
    ("tlsKeyFilePath", "tls_private_key_file_path", str),
    ("tlsAllowInsecureConnection", "tls_allow_insecure_connection", flag),
    ("tlsHostnameVerificationEnable", "tls_validate_hostname", flag),
)
_CLIENT = {name.lower(): (argument, parse) for name, argument, parse in _CLIENT_OPTIONS}
_CLIENT_NAMES = ["client.auth.token", *(f"client.{name}" for name, _, _ in _CLIENT_OPTIONS)]
