"""Lines of the table of rights that commands and admin calls share, and the names in a path.

A line finds its resource with the same functions that the handler uses, so no spelling of a name means one
topic to the check and another to the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from anabranch.errors import NotFoundError
from anabranch.model.names import DOMAINS, Domain, TopicName, parse_namespace, validate_entity
from anabranch.rights.needs import Need, Right, on_topic

Part = Callable[[str], str]
"""Gives a named part of a path, decoded."""


class RightRow(NamedTuple):
    """One line of the table."""

    right: Right
    needs: Callable[[Any], tuple[Need, ...]]
    """All needs of a command, or of a call by its path; each must be met."""


def _always(right: Right) -> RightRow:
    needs = (Need(right),)
    return RightRow(right, lambda _: needs)


OPEN: Final = _always(Right.OPEN)
OWN: Final = _always(Right.OWN)
AUTHENTICATED: Final = _always(Right.AUTHENTICATED)
SUPERUSER: Final = _always(Right.SUPERUSER)
PEER: Final = _always(Right.PEER)


def namespace_in(part: Part) -> str:
    """Return the namespace that a path names, as `tenant/namespace`; InvalidNameError if it cannot be one."""
    return "/".join(parse_namespace(f"{part('tenant')}/{part('namespace')}"))


def topic_in(domain: Domain, part: Part) -> TopicName:
    """Return the topic that a path names, in the scheme of the resource."""
    return TopicName(domain, part("tenant"), part("namespace"), part("topic"))


def name_in(part: Part) -> TopicName:
    """Return the topic that a path names without a scheme; only names of scalable topics hold slashes."""
    return topic_in("topic" if "/" in part("topic") else "persistent", part)


def lookup_in(part: Part) -> TopicName:
    """Return the topic that a lookup over HTTP names, with its scheme."""
    domain = part("domain")
    if domain not in DOMAINS:
        raise NotFoundError(f"unknown scheme {domain!r}; use one of {', '.join(DOMAINS)}")
    return TopicName.parse(f"{domain}://{part('tenant')}/{part('namespace')}/{part('topic')}")


def _of_tenant(part: Part) -> tuple[Need, ...]:
    return (Need(Right.TENANT_ADMIN, validate_entity("tenant", part("tenant"))),)


def _of_namespace(right: Right, part: Part) -> tuple[Need, ...]:
    return (Need(right, *parse_namespace(namespace_in(part))),)


def _of_topic(right: Right, domain: Domain, part: Part) -> tuple[Need, ...]:
    return (on_topic(right, topic_in(domain, part)),)


def _of_subscription(domain: Domain, part: Part) -> tuple[Need, ...]:
    return (on_topic(Right.CONSUME, topic_in(domain, part), part("subscription")),)


def _of_name(right: Right, part: Part) -> tuple[Need, ...]:
    return (on_topic(right, name_in(part)),)


def _of_lookup(part: Part) -> tuple[Need, ...]:
    return (on_topic(Right.LOOK_UP, lookup_in(part)),)


def _topic_line(right: Right, domain: Domain) -> RightRow:
    return RightRow(right, partial(_of_topic, right, domain))


LOOKED_UP: Final = RightRow(Right.LOOK_UP, _of_lookup)
TENANT: Final = RightRow(Right.TENANT_ADMIN, _of_tenant)
ADMIN: Final = RightRow(Right.TENANT_ADMIN, partial(_of_namespace, Right.TENANT_ADMIN))
NAMES: Final = RightRow(Right.USE_NAMESPACE, partial(_of_namespace, Right.USE_NAMESPACE))
CLASSIC_ADMIN: Final = _topic_line(Right.TENANT_ADMIN, "persistent")
CLASSIC_LOOK: Final = _topic_line(Right.LOOK_UP, "persistent")
CLASSIC_READ: Final = _topic_line(Right.CONSUME, "persistent")
CLASSIC_SUBSCRIPTION: Final = RightRow(Right.CONSUME, partial(_of_subscription, "persistent"))
LIVE_ADMIN: Final = _topic_line(Right.TENANT_ADMIN, "non-persistent")
LIVE_LOOK: Final = _topic_line(Right.LOOK_UP, "non-persistent")
LIVE_READ: Final = _topic_line(Right.CONSUME, "non-persistent")
LIVE_SUBSCRIPTION: Final = RightRow(Right.CONSUME, partial(_of_subscription, "non-persistent"))
SCALABLE_ADMIN: Final = _topic_line(Right.TENANT_ADMIN, "topic")
SCALABLE_LOOK: Final = _topic_line(Right.LOOK_UP, "topic")
SCALABLE_PRODUCE: Final = _topic_line(Right.PRODUCE, "topic")
SCALABLE_SUBSCRIPTION: Final = RightRow(Right.CONSUME, partial(_of_subscription, "topic"))
NAMED_ADMIN: Final = RightRow(Right.TENANT_ADMIN, partial(_of_name, Right.TENANT_ADMIN))
NAMED_LOOK: Final = RightRow(Right.LOOK_UP, partial(_of_name, Right.LOOK_UP))
