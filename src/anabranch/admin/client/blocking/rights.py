# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about grants."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import TopicLike, change, get, namespace_path, path_of, permissions_path
from anabranch.admin.models.tenants import TopicPermissions
from anabranch.arguments import listed, texts

Permissions = dict[str, list[str]]
"""The actions of each role."""


class RightMethods(HttpClient):
    """Methods about grants on namespaces, on topics, and about reserved subscriptions."""

    def permissions(self, on: TopicLike, *, timeout: float | None = None) -> Permissions:
        """The actions of each role on a `tenant/namespace`, or on a topic with its scheme.

        >>> admin.grant("public/default", "alice", ["produce", "consume"])
        >>> admin.permissions("public/default")
        {'alice': ['consume', 'produce']}
        """
        return self.send(get(permissions_path(on), Permissions), timeout)

    def grant(
        self, on: TopicLike, role: str, actions: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Grant a role these actions, and no others, on a namespace or on a topic."""
        self.send(change("POST", permissions_path(on, role), body=texts("actions", actions)), timeout)

    def revoke(self, on: TopicLike, role: str, *, timeout: float | None = None) -> None:
        """End all grants of a role on a namespace or on a topic."""
        self.send(change("DELETE", permissions_path(on, role)), timeout)

    def grant_on_topics(self, grants: Iterable[TopicPermissions], *, timeout: float | None = None) -> None:
        """Grant actions on several topics at once; all of them or none."""
        self.send(
            change(
                "POST",
                path_of("namespaces", "grantPermissionsOnTopics"),
                body=listed("grants", grants, TopicPermissions, "a list of TopicPermissions"),
            ),
            timeout,
        )

    def revoke_on_topics(self, grants: Iterable[TopicPermissions], *, timeout: float | None = None) -> None:
        """End all grants of roles on several topics."""
        self.send(
            change(
                "POST",
                path_of("namespaces", "revokePermissionsOnTopics"),
                body=listed("grants", grants, TopicPermissions, "a list of TopicPermissions"),
            ),
            timeout,
        )

    def subscription_roles(self, namespace: str, *, timeout: float | None = None) -> Permissions:
        """The roles for which subscriptions of a namespace are reserved."""
        path = namespace_path(namespace, "permissions", "subscription")
        return self.send(get(path, Permissions), timeout)

    def reserve_subscription(
        self, namespace: str, subscription: str, roles: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Let only these roles use a subscription; without any, all roles that may consume."""
        path = namespace_path(namespace, "permissions", "subscription", subscription)
        self.send(change("POST", path, body=texts("roles", roles)), timeout)
