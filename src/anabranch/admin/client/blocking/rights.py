# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about grants."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.admin.client import calls
from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import TopicLike, namespace_of, topic_or_namespace
from anabranch.admin.models.tenants import TopicPermissions
from anabranch.arguments import listed, texts

Permissions = dict[str, list[str]]
"""The actions of each role."""


class RightMethods(HttpClient):
    """Methods about grants on namespaces, on topics, and about reserved subscriptions."""

    def permissions(self, on: TopicLike, *, timeout: float | None = None) -> Permissions:
        """Return the actions of each role on a `tenant/namespace`, or on a topic with its scheme.

        >>> admin.grant("public/default", "alice", ["produce", "consume"])
        >>> admin.permissions("public/default")
        {'alice': ['consume', 'produce']}
        """
        return self.send(calls.PERMISSIONS(topic_or_namespace(on)), timeout)

    def grant(
        self, on: TopicLike, role: str, actions: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Grant a role these actions, and no others, on a namespace or on a topic."""
        body = texts("actions", actions)
        self.send(calls.GRANT(topic_or_namespace(on), role, body=body), timeout)

    def revoke(self, on: TopicLike, role: str, *, timeout: float | None = None) -> None:
        """End all grants of a role on a namespace or on a topic."""
        self.send(calls.REVOKE(topic_or_namespace(on), role), timeout)

    def grant_on_topics(self, grants: Iterable[TopicPermissions], *, timeout: float | None = None) -> None:
        """Grant actions on several topics at once; all of them or none."""
        body = listed("grants", grants, TopicPermissions, "a list of TopicPermissions")
        self.send(calls.GRANT_ON_TOPICS(body=body), timeout)

    def revoke_on_topics(self, grants: Iterable[TopicPermissions], *, timeout: float | None = None) -> None:
        """End all grants of roles on several topics."""
        body = listed("grants", grants, TopicPermissions, "a list of TopicPermissions")
        self.send(calls.REVOKE_ON_TOPICS(body=body), timeout)

    def subscription_roles(self, namespace: str, *, timeout: float | None = None) -> Permissions:
        """Return the roles for which subscriptions of a namespace are reserved."""
        return self.send(calls.SUBSCRIPTION_ROLES(namespace_of(namespace)), timeout)

    def reserve_subscription(
        self, namespace: str, subscription: str, roles: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Let only these roles use a subscription; without any, all roles that may consume."""
        on, body = namespace_of(namespace), texts("roles", roles)
        self.send(calls.RESERVE_SUBSCRIPTION(on, subscription, body=body), timeout)
