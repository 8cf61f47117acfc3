"""Calls of the admin API for classic, persistent:// topics, as the commands need them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from anabranch.admin.client import AdminClient
from anabranch.errors import AuthorizationError, InvalidNameError, NotFoundError
from anabranch.model.names import TopicName, parse_namespace


def topic_of(text: str) -> TopicName:
    """Return the scalable or classic topic that an operator names; a bare name is scalable."""
    name = TopicName.parse(text, default_domain="topic")
    if name.domain not in ("topic", "persistent"):
        raise InvalidNameError(f"{name}: this command is for topic:// and persistent:// topics")
    return name


def scalable_topic_of(admin: AdminClient, text: str) -> TopicName:
    """Return the scalable topic that an operator names; raises InvalidNameError for a classic one."""
    name = topic_of(text)
    if name.is_scalable:
        return name
    # A partition may be made by its first use only.
    whole = name.partitioned_topic
    partitions(admin, whole)  # Raises if the topic does not exist.
    successor = successor_of(admin, name)
    if successor is not None:
        raise InvalidNameError(f"{name} was migrated; the name of its scalable topic is {successor}")
    raise InvalidNameError(
        f"{name} is a classic topic, without segments; `anabranch topic migrate {whole}` makes it scalable"
    )


def successor_of(admin: AdminClient, name: TopicName) -> TopicName | None:
    """Return the scalable topic to which a classic topic, or its whole topic, was migrated.

    None if there is none, or none that the operator may see.
    """
    successor = name.partitioned_topic.topic
    try:
        admin.topic_metadata(successor)
    except (NotFoundError, AuthorizationError):
        return None
    return successor


def place(name: TopicName, *more: str) -> str:
    """Return the path of a classic topic, or of something that belongs to it."""
    parts = (name.tenant, name.namespace, name.local, *more)
    return "/".join(("/admin/v2/persistent", *(quote(part, safe="") for part in parts)))


def partitions(admin: AdminClient, name: TopicName) -> int:
    """Return the number of partitions, 0 for a topic that is not partitioned."""
    return int(admin.call("GET", place(name, "partitions"))["partitions"])


def create(admin: AdminClient, name: TopicName, count: int) -> None:
    if count:
        admin.call("PUT", place(name, "partitions"), body=count)
    else:
        admin.call("PUT", place(name))


def delete(admin: AdminClient, name: TopicName, *, force: bool) -> None:
    more = ("partitions",) if partitions(admin, name) else ()
    admin.call("DELETE", place(name, *more), query={"force": str(force).lower()})


def list_classic(admin: AdminClient, namespace: str) -> list[str]:
    """Return the names of the classic topics, each partitioned topic once."""
    path = "/".join(("/admin/v2/persistent", *(quote(part, safe="") for part in parse_namespace(namespace))))
    partitioned = {str(name) for name in admin.call("GET", f"{path}/partitioned")}
    names = {str(name) for name in admin.call("GET", path)}
    parts = {name for name in names if name.rpartition("-partition-")[0] in partitioned}
    return sorted((names - parts) | partitioned)


def stats(admin: AdminClient, name: TopicName) -> dict[str, Any]:
    """Return the stats of a topic, with those of its partitions if it has some."""
    if partitions(admin, name):
        return dict(admin.call("GET", place(name, "partitioned-stats")))
    return dict(admin.call("GET", place(name, "stats")))
