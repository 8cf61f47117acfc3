"""Parameters of authentication as Pulsar's tools write them: JSON, or `name:value,name:value`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from anabranch.errors import InvalidConfigurationError


def parse_parameters(text: str) -> dict[str, str]:
    """Return the parameters by name; raises InvalidConfigurationError, whose text contains no value.

    A value of the short form may contain colons, as paths and URLs do, but no comma.
    """
    if not isinstance(text, str):
        raise InvalidConfigurationError("the authentication parameters must be text")
    text = text.strip()
    if not text:
        return {}
    if text.startswith("{"):
        return _from_json(text)
    pairs = [part.partition(":") for part in text.split(",")]
    if not all(colon and name.strip() for name, colon, _ in pairs):
        raise InvalidConfigurationError(
            "write the authentication parameters as JSON, or as name:value,name:value"
        )
    return {name.strip(): value.strip() for name, _, value in pairs}


def _from_json(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        # The error of the decoder quotes the text, which may contain a secret.
        raise InvalidConfigurationError("the authentication parameters are not valid JSON") from None
    if not isinstance(found, dict):
        raise InvalidConfigurationError("the authentication parameters must be a JSON object")
    return {str(name): value if isinstance(value, str) else str(value) for name, value in found.items()}


def one_of_names(given: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return the value of the first of several names of one parameter; None if none of them has a value."""
    return next((given[name] for name in names if given.get(name)), None)


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InvalidConfigurationError for a misspelt name, which would change the credentials silently."""
    known = sorted(known)
    for name in given:
        if name not in known:
            raise InvalidConfigurationError(f"{what} has no parameter {name!r}; it has {', '.join(known)}")
