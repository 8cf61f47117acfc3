"""The topics that a compiled pattern means: their kind, their namespace, and the names that match. Pure.

Example: the pattern `persistent://acme/shop/orders-.*` means the classic topics of the namespace acme/shop
whose full names it matches, such as persistent://acme/shop/orders-eu. The pattern `orders-.*` means scalable
topics of public/default, and is compared with the last parts of their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from anabranch.arguments import of_kind
from anabranch.errors import InvalidConfigurationError, UnsupportedFeatureError
from anabranch.model.names import TopicName

DEFAULT_NAMESPACE = "public/default"

_SCHEME = re.compile(r"\^?([a-z-]+)://")
_PLAIN = re.compile(r"(?:[-=:\w.]|\\[-=:.])+/(?:[-=:\w.]|\\[-=:.])+(?=/)", re.ASCII)
"""Tenant and namespace in a pattern, in which `re.escape` may have escaped characters."""


@dataclass(frozen=True, slots=True)
class WantedTopics:
    """The topics of one namespace that a consumer reads."""

    namespace: str
    classic: bool = False
    pattern: re.Pattern[str] | None = None
    """None for all topics."""
    by_full_name: bool = False
    """Whether the pattern is for full names, and not for their last parts."""

    def matching(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names among these that the pattern matches as a whole."""
        pattern = self.pattern
        if pattern is None:
            return names
        if self.by_full_name:
            return frozenset(filter(pattern.fullmatch, names))
        return frozenset(name for name in names if pattern.fullmatch(TopicName.parse(name).local))


def wanted_topics(pattern: re.Pattern[str] | None, namespace: str | None) -> WantedTopics:
    """Return which topics a pattern, or a namespace, means; raises for one that could match no topic."""
    if pattern is None:
        if namespace is None:
            raise InvalidConfigurationError("give a list of topics, a compiled pattern, or a namespace")
        return WantedTopics(checked_namespace(namespace))
    text = pattern.pattern
    of_kind("the pattern of topics", text, str, "a pattern of text")
    scheme = _SCHEME.match(text)
    if scheme is None:
        if "://" in text:
            raise InvalidConfigurationError(
                f"the pattern {text!r} must begin with topic:// or persistent://, or match names alone"
            )
        return WantedTopics(checked_namespace(namespace or DEFAULT_NAMESPACE), pattern=pattern)
    if scheme[1] not in ("topic", "persistent"):
        raise UnsupportedFeatureError(f"patterns of {scheme[1]}:// topics are not supported; list the topics")
    plain = _PLAIN.match(text, scheme.end())
    if plain is None:
        raise InvalidConfigurationError(f"the tenant and namespace in the pattern {text!r} must be plain")
    place = checked_namespace(plain[0].replace("\\", ""))
    if namespace not in (None, place):
        raise InvalidConfigurationError(f"the pattern {text!r} is for {place}, and not for {namespace}")
    return WantedTopics(place, scheme[1] == "persistent", pattern, by_full_name=True)


def checked_namespace(text: str) -> str:
    try:
        TopicName.parse(f"topic://{text}/x")
    except InvalidConfigurationError as error:
        raise InvalidConfigurationError(f"namespace must be tenant/name, not {text!r}") from error
    return text
