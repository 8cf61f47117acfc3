"""Names the topics that a query reads: each in its one spelling, or a pattern over a namespace. Pure.

Example: `topic://public/default/orders` and `orders` are both `orders`; `shop/eu/orders` is
`topic://shop/eu/orders`, and `persistent://public/default/orders` is a different, classic topic. The pattern
`shop/eu/order-.*` matches `topic://shop/eu/order-1`, but not `order-1` of public/default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from anabranch.errors import InvalidConfigurationError
from anabranch.model.names import TopicName, parse_namespace

_PATTERN = re.compile(r"(?:(?P<domain>[a-z-]+)://)?(?:(?P<namespace>[^/]+/[^/]+)/)?(?P<local>[^/].*)")


def short_name(text: str) -> str:
    """Return the one spelling of a topic: the bare name in topic://public/default, otherwise the full name.

    Offsets and the column `topic` contain this spelling, so a restarted query may write the name differently.
    """
    name = TopicName.parse(text.strip(), default_domain="topic")
    return str(name).removeprefix("topic://public/default/")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A regular expression over the last part of the names of one namespace."""

    namespace: str
    """As `tenant/name`."""
    local: str
    """Matches the whole last part of a name."""
    domain: Literal["topic", "persistent"] = "topic"

    @property
    def is_classic(self) -> bool:
        return self.domain == "persistent"

    def matches(self, topic: str) -> bool:
        name = TopicName.parse(topic, default_domain="topic")
        return (
            name.domain == self.domain
            and name.namespace_name == self.namespace
            and re.fullmatch(self.local, name.local) is not None
        )

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local}"


def parse_pattern(text: str) -> TopicPattern:
    """Parse `regex` or `tenant/namespace/regex`, the latter also after topic:// or persistent://."""
    found = _PATTERN.fullmatch(text.strip())
    domain = found and (found["domain"] or "topic")
    if found is None or domain not in ("topic", "persistent") or (found["domain"] and not found["namespace"]):
        raise InvalidConfigurationError(
            f"option subscribePattern is {text!r}; it takes a regular expression over the topic names of "
            "public/default, or [topic://|persistent://]tenant/namespace/ and the expression"
        )
    namespace = "/".join(parse_namespace(found["namespace"] or "public/default"))
    try:
        re.compile(found["local"])
    except re.error as error:
        raise InvalidConfigurationError(
            f"option subscribePattern is {text!r}; {found['local']!r} is not a regular expression: {error}"
        ) from None
    return TopicPattern(namespace, found["local"], "persistent" if domain == "persistent" else "topic")
