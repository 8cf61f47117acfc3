"""Methods about grants."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, change, get, namespace_path, path_of, permissions_path
from anabranch.admin.models.tenants import TopicPermissions
from anabranch.arguments import listed, texts

Permissions = dict[str, list[str]]
"""The actions of each role."""


class AsyncRightMethods(AsyncHttpClient):
    """Methods about grants on namespaces, on topics, and about reserved subscriptions."""

    async def permissions(self, on: TopicLike, *, timeout: float | None = None) -> Permissions:
        """The actions of each role on a `tenant/namespace`, or on a topic with its scheme.

        >>> await admin.grant("public/default", "alice", ["produce", "consume"])
        >>> await admin.permissions("public/default")
        {'alice': ['consume', 'produce']}
        """
        return await self.send(get(permissions_path(on), Permissions), timeout)

    async def grant(
        self, on: TopicLike, role: str, actions: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Grant a role these actions, and no others, on a namespace or on a topic."""
        await self.send(change("POST", permissions_path(on, role), body=texts("actions", actions)), timeout)

    async def revoke(self, on: TopicLike, role: str, *, timeout: float | None = None) -> None:
        """End all grants of a role on a namespace or on a topic."""
        await self.send(change("DELETE", permissions_path(on, role)), timeout)

    async def grant_on_topics(
        self, grants: Iterable[TopicPermissions], *, timeout: float | None = None
    ) -> None:
        """Grant actions on several topics at once; all of them or none."""
        await self.send(
            change(
                "POST",
                path_of("namespaces", "grantPermissionsOnTopics"),
                body=listed("grants", grants, TopicPermissions, "a list of TopicPermissions"),
            ),
            timeout,
        )

    async def revoke_on_topics(
        self, grants: Iterable[TopicPermissions], *, timeout: float | None = None
    ) -> None:
        """End all grants of roles on several topics."""
        await self.send(
            change(
                "POST",
                path_of("namespaces", "revokePermissionsOnTopics"),
                body=listed("grants", grants, TopicPermissions, "a list of TopicPermissions"),
            ),
            timeout,
        )

    async def subscription_roles(self, namespace: str, *, timeout: float | None = None) -> Permissions:
        """The roles for which subscriptions of a namespace are reserved."""
        path = namespace_path(namespace, "permissions", "subscription")
        return await self.send(get(path, Permissions), timeout)

    async def reserve_subscription(
        self, namespace: str, subscription: str, roles: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Let only these roles use a subscription; without any, all roles that may consume."""
        path = namespace_path(namespace, "permissions", "subscription", subscription)
        await self.send(change("POST", path, body=texts("roles", roles)), timeout)
