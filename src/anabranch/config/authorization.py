"""The settings of authorisation: a part of `BrokerConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.config.fields import comma_list, setting


@dataclass(frozen=True, kw_only=True)
class AuthorizationConfig:
    """Which roles have rights that no tenant and no namespace grants."""

    authorization: bool = setting(
        False,
        "Whether roles need rights: a role may then do only what it was granted. Needs authentication.",
        pulsar="authorizationEnabled",
    )
    superuser_roles: str = setting(
        "",
        "Roles that may do everything, separated by commas.",
        pulsar="superUserRoles",
    )
    proxy_roles: str = setting(
        "",
        "Roles of proxies, separated by commas. A request needs the rights of both the proxy and its client.",
        pulsar="proxyRoles",
    )
    role_wildcards: bool = setting(
        False,
        "Whether a grant to prefix* or *suffix applies to every role whose name starts or ends that way.",
        pulsar="authorizationAllowWildcardsMatching",
    )
    grants_on_missing_topics: bool = setting(
        False,
        "Whether rights can be granted on a topic that does not exist yet.",
        pulsar="allowAclChangesOnNonExistentTopics",
    )


def split_roles(text: str) -> frozenset[str]:
    """Return the roles in a setting, which separates them by commas."""
    return frozenset(comma_list(text))
